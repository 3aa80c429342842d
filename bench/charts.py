"""A bar for each contestant, as SVG that reads on light and dark pages; pure."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

ROW, LEFT, WIDTH, RIGHT = 30, 190, 460, 110
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f; } .value { font-variant-numeric: tabular-nums; }
.ours { fill: #1a7f37; } .theirs { fill: #8c959f; } .round { fill: #24292f; opacity: .55; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .ours { fill: #3fb950; } .theirs { fill: #6e7681; }
.round { fill: #e6edf3; } }"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A median, and every round as a dot."""

    name: str
    value: float
    rounds: tuple[float, ...]
    label: str
    ours: bool


def svg(title: str, bars: tuple[Bar, ...]) -> str:
    """The drawing; an empty one says so in its title alone."""
    longest = max((max(bar.rounds, default=bar.value) for bar in bars), default=0) or 1
    height = ROW * len(bars) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
    ]
    for number, bar in enumerate(bars):
        lines += _bar(bar, 5 + ROW * number, WIDTH / longest)
    return "\n".join([*lines, "</svg>", ""])


def _bar(bar: Bar, top: int, scale: float) -> list[str]:
    length = max(bar.value * scale, 1)
    kind, middle = "ours" if bar.ours else "theirs", top + ROW // 2
    end = LEFT + max(length, *(value * scale for value in bar.rounds), 0) + 8
    return [
        f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{top + 5}" width="{length:.1f}" height="{ROW - 10}" rx="3"/>',
        *(
            f'<circle class="round" cx="{LEFT + value * scale:.1f}" cy="{middle}" r="2.5"/>'
            for value in (bar.rounds if len(bar.rounds) > 1 else ())
        ),
        f'<text class="value" x="{end:.1f}" y="{middle + 4}">{escape(bar.label)}</text>',
    ]
