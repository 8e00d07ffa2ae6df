"""The mechanism of all explorers: pictures drawn beforehand, and controls that choose among them in the page itself.

The page's widget scripts follow links between widgets without a kernel. So each control's index is linked to the
index of a `Stack`, which shows one of its children; with two controls the children of the outer stack are stacks.
"""

from collections.abc import Callable, Sequence
from html import escape
from itertools import product
from typing import Any

from ipywidgets import HTML, Box, Dropdown, HBox, Layout, SelectionSlider, Stack, VBox, Widget, jsdlink
from ipywidgets.widgets.widget_string import HTMLStyle

from assoc.errors import InputError
from assoc.widgets.pictures import STYLE

Control = Dropdown | SelectionSlider

LIVE_CLASS = "assoc-live"
_ARROW = "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E%3Cpath d='M5 7l4 4 4-4' fill='none' "
_ARROW += "stroke='%23999' stroke-width='2'/%3E%3C/svg%3E"

# The book's pages have a .bd-main. There what needs a kernel is hidden, which is the one difference between page and
# notebook; and controls take the colours of the page's theme, dark or light, which they would not know of.
PAGE_STYLE = f"""
.bd-main .{LIVE_CLASS} {{ display: none !important; }}
html[data-theme=dark] .bd-content div.cell_output .widget-subarea:has(.assoc-explorer) {{
  background: none; color: inherit; padding: 0; }}
.bd-main .assoc-explorer {{
  --jp-widgets-color: var(--pst-color-text-base); --jp-widgets-label-color: var(--pst-color-text-base);
  --jp-widgets-readout-color: var(--pst-color-text-base); --jp-widgets-input-color: var(--pst-color-text-base);
  --jp-widgets-input-background-color: var(--pst-color-background);
  --jp-widgets-input-border-color: var(--pst-color-text-muted);
  --jp-border-color1: var(--pst-color-text-muted); --jp-border-color2: var(--pst-color-text-muted);
  --jp-layout-color1: var(--pst-color-background); --jp-layout-color3: var(--pst-color-text-muted);
  --jp-widgets-dropdown-arrow: url("data:image/svg+xml,{_ARROW}"); }}
"""


def choice(name: str, options: Sequence[tuple[str, Any]], hint: str, index: int = 0) -> Dropdown:
    """A drop-down list of (label, value) pairs, for things without an order."""
    return Dropdown(options=_labelled(name, options), index=index, **_looks(name, hint))


def slider(name: str, options: Sequence[tuple[str, Any]], hint: str, index: int = 0) -> SelectionSlider:
    """A slider over (label, value) pairs in their order.

    Raises InputError for fewer than two: such a slider cannot move.
    """
    if len(options) < 2:
        raise InputError(f"the slider {name!r} needs at least two values to move between, and has {len(options)}")
    return SelectionSlider(options=_labelled(name, options), index=index % len(options), **_looks(name, hint))


def _labelled(name: str, options: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    labels = [label for label, _ in options]
    if not labels:
        raise InputError(f"there is nothing to choose from for {name!r}: give at least one value")
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"{twice!r} is among the values of {name!r} more than once: give each once")
    return list(options)


def _looks(name: str, hint: str) -> dict[str, Any]:
    return {
        "description": name,
        "tooltip": hint,
        "style": {"description_width": "initial"},
        "layout": Layout(width="auto", flex="1 1 15em", max_width="30em"),
    }


def live_box(inputs: Sequence[Widget], compute: Callable[..., str]) -> VBox:
    """Controls that need a kernel, and beneath them `compute(*values)` as HTML, anew whenever a value changes.

    An InputError is shown in place of the answer. The controls are in the box unless they stand elsewhere already.
    """
    answer = HTML()

    def respond(_: object = None) -> None:
        try:
            answer.value = compute(*(widget.value for widget in inputs))
        except InputError as error:
            answer.value = f"<p role='alert'>{escape(str(error))}</p>"

    for widget in inputs:
        widget.observe(respond, names="value")
    box = VBox([*(widget for widget in inputs if not isinstance(widget, Control)), answer])
    box.add_class(LIVE_CLASS)
    return box


class Explorer(VBox):
    """Pictures for every combination of the controls' values, one shown at a time.

    On the built page and in Jupyter the picture follows the controls; a program that reads the notebook without
    widgets (a code host) shows the first picture.

    Args:
        title: what it is, in a few words.
        guide: a sentence on what to do and what to look at.
        controls: made by `choice` and `slider`, one or more.
        draw: draw(*values), with one value a control, gives the picture as HTML.
        legend: HTML that all pictures share.
        live: made by `live_box`, for a notebook with a kernel.

    Raises:
        InputError: no controls.

    Attributes:
        frames: labels of the controls' values, in the controls' order -> picture.
        links: one per stack, control index -> stack index.
    """

    def __init__(
        self,
        title: str,
        guide: str,
        controls: Sequence[Control],
        draw: Callable[..., str],
        legend: str = "",
        live: Sequence[Box] = (),
    ) -> None:
        if not controls:
            raise InputError(f"{title} has no controls: give at least one, made by choice or slider")
        self.title, self.controls, self.links = title, tuple(controls), []
        combinations = product(*(control.options for control in controls))
        self.frames = {
            tuple(label for label, _ in options): draw(*(value for _, value in options)) for options in combinations
        }
        self._heading = f"<p class='assoc-title'><strong>{escape(title)}.</strong> {escape(guide)}</p>{legend}"
        # One layout and one style for all pictures: each widget of its own would add a kilobyte of state per picture.
        self._shared = {"layout": Layout(width="100%"), "style": HTMLStyle()}
        head = HTML(f"<style>{STYLE}{PAGE_STYLE}</style>{self._heading}", **self._shared)
        chosen = HBox(list(controls), layout=Layout(flex_flow="row wrap", grid_gap="0 1.2em"))
        self.stack = self._stack(())
        self.stack.add_class("assoc-frames")
        super().__init__([head, chosen, self.stack, *live])
        self.add_class("assoc-explorer")

    def _stack(self, chosen: tuple[str, ...]) -> Stack:
        """The stack of the control before the ones whose labels are chosen; the last control's is the outermost."""
        control = self.controls[len(self.controls) - len(chosen) - 1]
        keys = [(label, *chosen) for label, _ in control.options]
        is_innermost = len(keys[0]) == len(self.controls)
        children = [HTML(self.frames[key], **self._shared) if is_innermost else self._stack(key) for key in keys]
        stack = Stack(children, selected_index=control.index, layout=self._shared["layout"])
        self.links.append(jsdlink((control, "index"), (stack, "selected_index")))
        return stack

    @property
    def frame(self) -> str:
        """The picture that the controls choose now."""
        return self.frames[tuple(control.label for control in self.controls)]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(control.options)} x {control.description}" for control in self.controls)
        return f"{self.title}: {sizes}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        note = "<p class='assoc-note'>Run this cell, or open the page in the book, to choose another picture.</p>"
        still = f"<style>{STYLE}</style><div class='assoc-explorer'>{self._heading}{self.frame}{note}</div>"
        return super()._repr_mimebundle_() | {"text/plain": repr(self), "text/html": still}
