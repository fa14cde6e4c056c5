"""Try a model in the browser: drop a photo, then click a pixel to see what it attends to.

    python demo/app.py [--port 7860]

The page needs Gradio (`pip install gradio`). Without a checkpoint it uses the weights that this
project publishes for the config, or random ones.
"""

import argparse
import functools

import gradio as gr
import numpy as np

import mmseg_ext
from mmseg_ext.inference.models import DEFAULT, PRETRAINED
from mmseg_ext.inspection import attention_pictures as attention


@functools.lru_cache(maxsize=2)
def load(config: str, checkpoint: str):
    published = not checkpoint and config in PRETRAINED
    return mmseg_ext.get_model(config, pretrained=published, weights=checkpoint or None)


def show_errors(function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (ImportError, OSError, ValueError) as error:
            raise gr.Error(str(error)) from error

    return run


@show_errors
def segment(photo: str | None, config: str, checkpoint: str):
    """Return the overlay with its legend, and clear the picture of an earlier photo's attention."""
    return mmseg_ext.Predictor(load(config, checkpoint))(photo).overlay() if photo else None, None


@show_errors
def attend(photo: str, config: str, checkpoint: str, event: gr.SelectData):
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


with gr.Blocks(title="mmseg_ext") as page:
    with gr.Row():
        config = gr.Dropdown(mmseg_ext.list_models(), value=DEFAULT, label="config")
        checkpoint = gr.Textbox(label="checkpoint (a path; empty: published or random weights)")
    with gr.Row():
        photo = gr.Image(type="filepath", label="photo")
        overlay = gr.Image(label="classes: click a pixel", interactive=False, elem_id="overlay")
        heat = gr.Image(label="what the pixel attends to", interactive=False, elem_id="heat")
    settings = [photo, config, checkpoint]
    gr.on([photo.change, config.change, checkpoint.submit], segment, settings, [overlay, heat])
    overlay.select(attend, settings, heat)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=7860)
    page.launch(server_port=parser.parse_args().port)
