"""Try a model in the browser: count the nuclei in an image, then click a pixel to see more.

    python demo/app.py [--port 7860] [--checkpoints]

The page needs Gradio (`pip install gradio`). It offers the models whose weights this project has.
With `--checkpoints` it offers all models, and opens any checkpoint that a visitor names.
"""

import argparse
import functools
from pathlib import Path

import gradio as gr
import numpy as np

import mmseg_ext
from mmseg_ext.inference.models import DEFAULT
from mmseg_ext.inspection import attention_pictures as attention

TITLE = "Find the nuclei in a microscopy image"
ABOUT = (
    "A small EANet colors the nuclei blue and the borders between them red; click a pixel of the "
    "result to see which other pixels use the same memory of external attention."
)
EXAMPLES = [str(path) for path in sorted(Path(__file__).parent.glob("nuclei*.png"))]
COUNTED = "nucleus"  # the class whose objects the page counts


@functools.lru_cache(maxsize=2)
def load(config: str, checkpoint: str):
    return mmseg_ext.get_model(config, pretrained=not checkpoint, weights=checkpoint or None)


def show_errors(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (ImportError, OSError, ValueError) as error:
            raise gr.Error(str(error)) from error

    return run


@show_errors
def segment(photo: str | None, config: str = DEFAULT, checkpoint: str = ""):
    """Return the overlay, the count, and no attention yet."""
    model = load(config, checkpoint)
    license = f"License of the weights: {model.terms.get('license', 'ask their author')}."
    if not photo:
        return None, license, None
    result = mmseg_ext.Predictor(model)(photo)
    count = f"### {len(result.objects(COUNTED))} nuclei\n\n" if COUNTED in result.classes else ""
    return result.overlay(), count + license, None


@show_errors
def attend(event: gr.SelectData, photo: str | None, config: str = DEFAULT, checkpoint: str = ""):
    """Return where the clicked pixel attends to, or for memory slots, who uses the same slots."""
    model = load(config, checkpoint)
    image, shown, original = attention.network_input(model, photo)
    pixel = attention.seen_pixel(event.index[::-1], original, shown.shape[:2])
    name, layer = list(attention.find_layers(model).items())[-1]
    x = attention.capture_inputs(model, {name: layer}, image)[0][name]
    size = tuple(image.shape[2:])  # padded for the network
    if isinstance(layer, attention.SLOT_LAYERS):
        slots = attention.slot_maps(layer, x, size)
        row, column = attention.locate(pixel, size, slots.shape[1:])
        heat = (slots * slots[:, row, column, None, None]).sum(0)
    else:
        heat = attention.head_maps(layer, x, size, pixel).mean(0)
    height, width = shown.shape[:2]
    padded = np.pad(shown, [(0, size[0] - height), (0, size[1] - width), (0, 0)])
    picture = attention.overlay(padded, heat, signed=bool(heat.min() < 0))
    return (255 * picture[:height, :width]).astype(np.uint8)


def build_page(checkpoints: bool = False) -> gr.Blocks:
    """Return the page; with `checkpoints` visitors choose any model and any file."""
    with gr.Blocks(title=TITLE) as page:
        gr.Markdown(f"# {TITLE}\n\n{ABOUT}")
        shown = dict(interactive=False, min_width=300)  # below each other on a phone
        with gr.Row():
            photo = gr.Image(type="filepath", label="image", elem_id="photo", min_width=300)
            overlay = gr.Image(label="result: click a pixel", **shown, elem_id="overlay")
            heat = gr.Image(label="pixels with the same memory", **shown, elem_id="heat")
        summary = gr.Markdown(elem_id="summary")
        gr.Examples(EXAMPLES, photo, label="Examples (CC0): click one")
        names = mmseg_ext.list_models(pretrained=not checkpoints)
        config = gr.Dropdown(names, value=DEFAULT, label="model")
        settings = [photo, config]
        if checkpoints:
            settings.append(gr.Textbox("", label="checkpoint (a path; empty: our own weights)"))
        changes = [photo.change, config.change, page.load]
        gr.on(changes, segment, settings, [overlay, summary, heat], api_name="segment")
        overlay.select(attend, settings, heat)
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--checkpoints", action="store_true", help="open files that visitors name")
    args = parser.parse_args()
    build_page(args.checkpoints).launch(server_port=args.port)
