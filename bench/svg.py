# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG with the standard library alone, for suites that run where matplotlib is not."""

import math

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 30, 45
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2")


def _axis(values, log):
    low, high = min(values), max(values)
    if log:
        return lambda v: (math.log(v) - math.log(low)) / max(1e-12, math.log(high) - math.log(low))
    return lambda v: v / high if high else 0.0


def _ticks(values, log):
    low, high = min(values), max(values)
    if log:
        count = 5
        return sorted({low * (high / low) ** (i / (count - 1)) for i in range(count)})
    return [high * i / 4 for i in range(5)]


def chart(path, title, x_label, y_label, series, x_log=True, y_log=False, x_ticks=None):
    """`series`: list of (name, [(x, y), ...]); writes one chart to `path`."""
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points]
    at_x, at_y = _axis(xs, x_log), _axis(ys, y_log)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x, y):
        return LEFT + width * at_x(x), TOP + height * (1 - at_y(y))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="10">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="12">{title}</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
        f'<text x="{LEFT + width / 2}" y="{HEIGHT - 8}" text-anchor="middle">{x_label}</text>',
        f'<text transform="translate(12 {TOP + height / 2}) rotate(-90)" text-anchor="middle">{y_label}</text>',
    ]
    for tick in x_ticks or _ticks(xs, x_log):
        x = place(tick, ys[0])[0]
        out.append(f'<text x="{x:.1f}" y="{TOP + height + 14}" text-anchor="middle">{tick:.4g}</text>')
    for tick in _ticks(ys, y_log):
        y = place(xs[0], tick)[1]
        out.append(f'<text x="{LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">{tick:.4g}</text>')
        out.append(f'<line x1="{LEFT}" x2="{LEFT + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
    for i, (name, points) in enumerate(series):
        color = COLORS[i % len(COLORS)]
        line = " ".join("%.1f,%.1f" % place(x, y) for x, y in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        out += ['<circle cx="%.1f" cy="%.1f" r="2" fill="%s"/>' % (*place(x, y), color) for x, y in points]
        out.append(f'<text x="{WIDTH - RIGHT + 8}" y="{TOP + 12 + 13 * i}" fill="{color}">{name}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*out, "</svg>", ""]))
