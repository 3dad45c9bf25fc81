// Charts of the last ten minutes, by uPlot, which `index.html` loads.

import { h } from "./dom.js";
import { times } from "./live.js";

// Seconds that are shown at most, and at least: what there is begins with the broker.
const MOST = 600;
const LEAST = 60;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A figure with a chart in it. `series`: `{label, colour, values()}`; `shown` words a value; it reaches to `least`. */
export function chart(title, series, shown, least = 4) {
  const holder = h("div", { class: "chart" });
  const figure = h("figure", {}, h("figcaption", {}, title), holder);
  let plot = null;
  const data = () => [times(), ...series.map((each) => each.values())];
  const range = () => {
    const all = times();
    const last = all.at(-1) ?? Date.now() / 1000;
    return [Math.min(last - LEAST, Math.max(last - MOST, all[0] ?? last)), last];
  };
  function draw() {
    plot?.destroy();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
    plot = new uPlot(
      {
        width: Math.max(holder.clientWidth, 200),
        height: 170,
        cursor: { drag: { x: false, y: false }, points: { size: 6 } },
        // Where nobody points at a time, the legend has the last values.
        hooks: { setCursor: [(made) => made.cursor.idx == null && queueMicrotask(() => latest(made))], ready: [latest] },
        scales: { x: { range }, y: { range: (_, low, high) => [0, Math.max((high ?? 0) * 1.1, least)] } },
        axes: [
          { ...axis, size: 28, values: (_, ticks, at, space, step) => ticks.map((each) => clock(each, step < 60)), space: 70 },
          { ...axis, size: 58, values: (_, ticks) => ticks.map(shown), space: 32 },
        ],
        series: [
          { label: "Time", value: (_, value) => (value == null ? "–" : clock(value, true)) },
          ...series.map((each) => ({
            label: each.label,
            stroke: colour(each.colour),
            width: 1.6,
            points: { show: false },
            value: (_, value) => (value == null ? "–" : shown(value)),
          })),
        ],
      },
      data(),
      holder,
    );
  }
  const watcher = new ResizeObserver(() => {
    const width = holder.clientWidth;
    if (width > 0 && plot === null) draw();
    else if (width > 0 && plot.width !== width) plot.setSize({ width, height: 170 });
  });
  watcher.observe(holder);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const again = () => plot !== null && draw();
  scheme.addEventListener("change", again);
  return {
    figure,
    update() {
      if (plot === null) return;
      plot.setData(data());
      if (plot.cursor.idx == null) latest(plot);
    },
    close() {
      watcher.disconnect();
      scheme.removeEventListener("change", again);
      plot?.destroy();
    },
  };
}

function latest(plot) {
  const last = plot.data[0].length - 1;
  if (last >= 0) plot.setLegend({ idx: last });
}

function clock(value, withSeconds = false) {
  return new Date(value * 1000).toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    second: withSeconds ? "2-digit" : undefined,
    hour12: false,
  });
}
