"""Try a model in the browser: find objects in photos, then click a pixel to see more.

    python demo/app.py [--port 7860] [--project FOLDER ...] [--checkpoints]

The page needs Gradio (`pip install gradio`). It offers the models whose weights this project has,
and those of your projects. With `--checkpoints` it offers all models, and opens any checkpoint that
a visitor names. Several photos give overlays, a table and an archive, as `mmseg-ext image_demo`.
"""

import argparse
import contextlib
import csv
import functools
import io
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import mmseg_ext
from mmseg_ext.checkpoint.files import best_checkpoint
from mmseg_ext.commands import run
from mmseg_ext.inference.models import DEFAULT
from mmseg_ext.inference.prediction import ResultFiles
from mmseg_ext.inspection import attention_pictures as attention

try:
    import gradio as gr
except ImportError as error:
    raise SystemExit(f"demo/app.py: {error}; run: pip install gradio") from error

TITLE = "Find objects in photos"
ABOUT = (
    "Each object gets an outline. This project's small EANet finds nuclei in microscopy images. "
    "Click a pixel of the result to see which pixels use the same memory of external attention."
)
EXAMPLES = [str(path) for path in sorted(Path(__file__).parent.glob("nuclei*.png"))]
RESULTS = tempfile.TemporaryDirectory(prefix="mmseg_ext_page_")  # of several photos


def find_model(config: str, checkpoint: str) -> tuple[str, str]:
    """Return a model's config and checkpoint; of a project's folder, the best or else the last."""
    if not Path(config).is_dir():
        return config, checkpoint
    found = checkpoint or best_checkpoint(Path(config, "work_dir"))
    if not found:
        raise ValueError(f"{config}: no checkpoint in its work_dir; train the project first")
    used = Path(config, "work_dir", "config.py")  # with the flags of the training, such as --size
    return str(used if used.is_file() else Path(config, "config.py")), str(found)


@functools.lru_cache(maxsize=2)
def load(config: str, checkpoint: str):
    config, checkpoint = find_model(config, checkpoint)
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
    """Return the overlay, the counts, and no attention yet."""
    model = load(config, checkpoint)
    license = f"License of the weights: {model.terms.get('license', 'ask their author')}."
    if not photo:
        return None, license, None
    predictor = mmseg_ext.Predictor(model)
    result = predictor(photo)
    lines = []
    files = ResultFiles(Path(), (), predictor)
    for name, objects in files.objects(result).items():
        share = np.mean(result.labels == result.classes.index(name))
        lines.append(f"**{name}: {len(objects)}** ({share:.1%} of the pixels)")
    return result.overlay(), "\n\n".join([*lines, license]), None


@show_errors
def segment_all(photos: list[str] | None, config: str = DEFAULT, checkpoint: str = ""):
    """Return the overlays, the table of the classes, messages, and an archive of all results."""
    if not photos:
        raise ValueError("choose photos first")
    folder = Path(tempfile.mkdtemp(dir=RESULTS.name))
    (folder / "photos").mkdir()
    for number, photo in enumerate(photos):
        copy = folder / "photos" / Path(photo).name
        if copy.exists():
            copy = copy.with_name(f"{number}_{copy.name}")
        shutil.copy(photo, copy)
    config, checkpoint = find_model(config, checkpoint)
    words = [str(folder / "photos"), config, *filter(None, [checkpoint])]
    words += ["--json", "--csv", "--out", str(folder / "results")]
    with contextlib.redirect_stderr(io.StringIO()) as messages:
        run("image_demo", words)
    text = messages.getvalue().replace(f"{folder / 'photos'}/", "").replace("\n", "\n\n").strip()
    overlays = sorted((folder / "results/overlays").glob("*.png"))
    if not overlays:
        raise ValueError(text)
    with (folder / "results/classes.csv").open(encoding="utf-8-sig") as file:
        headers, *rows = csv.reader(file)
    archive = shutil.make_archive(str(folder / "results"), "zip", folder / "results")
    shown = [(str(path), path.stem) for path in overlays]
    return shown, {"headers": headers, "data": rows}, text, archive


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


def build_page(checkpoints: bool = False, projects: Sequence[str] = ()) -> gr.Blocks:
    """Return the page; with `checkpoints` visitors choose any model and any file."""
    names = [*projects, *mmseg_ext.list_models(pretrained=not checkpoints)]
    with gr.Blocks(title=TITLE) as page:
        gr.Markdown(f"# {TITLE}\n\n{ABOUT}")
        config = gr.Dropdown(names, value=projects[0] if projects else DEFAULT, label="model")
        checkpoint = []
        if checkpoints:
            checkpoint = [gr.Textbox("", label="checkpoint (a path; empty: our own weights)")]
        with gr.Tab("One photo"):
            shown = dict(interactive=False, min_width=300)  # below each other on a phone
            with gr.Row():
                photo = gr.Image(type="filepath", label="image", elem_id="photo", min_width=300)
                overlay = gr.Image(label="result: click a pixel", **shown, elem_id="overlay")
                heat = gr.Image(label="pixels with the same memory", **shown, elem_id="heat")
            summary = gr.Markdown(elem_id="summary")
            gr.Examples(EXAMPLES, photo, label="Examples (CC0): click one")
        with gr.Tab("Several photos"):
            photos = gr.File(file_count="multiple", label="photos", elem_id="photos")
            folder = gr.UploadButton("Choose a folder", file_count="directory", elem_id="folder")
            start = gr.Button("Segment all", variant="primary", elem_id="start")
            messages = gr.Markdown(elem_id="messages")
            gallery = gr.Gallery(
                label="overlays", columns=3, object_fit="contain", elem_id="gallery"
            )
            table = gr.Dataframe(label="classes.csv", interactive=False, elem_id="table")
            archive = gr.File(label="labels, overlays, CSV, GeoJSON", elem_id="archive")
        settings = [photo, config, *checkpoint]
        changes = [photo.change, config.change, page.load]
        gr.on(changes, segment, settings, [overlay, summary, heat], api_name="segment")
        overlay.select(attend, settings, heat)
        folder.upload(lambda files: files, folder, photos)
        several = [photos, config, *checkpoint]
        start.click(segment_all, several, [gallery, table, messages, archive], api_name="all")
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument(
        "--project", nargs="+", default=[], help="folders of `mmseg-ext new_project`"
    )
    parser.add_argument("--checkpoints", action="store_true", help="open files that visitors name")
    args = parser.parse_args()
    build_page(args.checkpoints, args.project).launch(server_port=args.port)
