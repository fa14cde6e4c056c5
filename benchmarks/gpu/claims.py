"""Claims of the docs, and what a run says about each."""
CLAIMS=[]
