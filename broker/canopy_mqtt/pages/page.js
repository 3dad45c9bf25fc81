// Draws the charts of a page, by uPlot, light or dark as the reader has it; a stretch of time that is chosen in one is
// shown in all that share its axis. `charts.py` says which data there are.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC");
  const stamp = (seconds) => new Date(seconds * 1e3).toISOString().slice(0, 19).replace("T", " ");

  /** Times beside the axis; the day where it begins. `step`: seconds from one to the next. */
  function clocks(_, ticks, __, ___, step) {
    return ticks.map((each, at) => {
      const [day, time] = stamp(each).split(" ");
      if (step >= 86400) return day;
      const shown = step < 60 ? time : time.slice(0, 5);
      return at === 0 || time === "00:00:00" ? `${shown}\n${day}` : shown;
    });
  }

  function short(value) {
    if (value == null) return "–";
    return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));
  }

  /** What is drawn of stacked series: each with what lies below it. */
  function sums(series) {
    const below = series[0].values.map(() => 0);
    return series.map((each) => each.values.map((value, at) => (below[at] += value ?? 0)));
  }

  function seriesOf(chart, each) {
    const paths = { bars: uPlot.paths.bars({ size: [0.8, 60] }), steps: uPlot.paths.stepped({ align: 1 }) };
    return {
      label: each.name,
      scale: each.scale,
      stroke: each.colour,
      fill: each.kind === "bars" ? each.colour : undefined,
      width: each.kind === "bars" ? 0 : 1.6,
      dash: each.dashed ? [2, 4] : undefined,
      paths: paths[each.kind],
      spanGaps: chart.joined,
      points: each.kind === "bars" ? { show: false } : { size: chart.joined && each.kind === "line" ? 9 : 5 },
      value: (plot, _, __, at) => (at == null ? "–" : short(each.values[at])),
    };
  }

  /** Stages are shaded and divided behind the lines. */
  function shade(chart, plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const [, begin, end, shaded] of chart.stages) {
      const from = plot.valToPos(begin, "x", true);
      ctx.fillStyle = "rgba(61, 132, 198, 0.09)";
      if (shaded) ctx.fillRect(from, bbox.top, plot.valToPos(end, "x", true) - from, bbox.height);
      ctx.fillStyle = colour("--soft");
      ctx.fillRect(from, bbox.top, 1, bbox.height);
    }
    ctx.restore();
  }

  /** The names of stages: each in a box as wide as its stage, which cuts what does not fit. */
  function name(chart, plot) {
    const width = plot.over.clientWidth;
    plot.names ??= chart.stages.map(([text]) => {
      const made = document.createElement("span");
      made.className = "stage-name";
      made.textContent = made.title = text;
      plot.over.appendChild(made);
      return made;
    });
    chart.stages.forEach(([, begin, end], at) => {
      const from = Math.max(plot.valToPos(begin, "x"), 0), to = Math.min(plot.valToPos(end, "x"), width);
      plot.names[at].style.left = `${from}px`;
      plot.names[at].style.width = `${Math.max(to - from, 0)}px`;
    });
  }

  function made(chart, holder) {
    const order = chart.stacked ? [...chart.series].reverse() : chart.series;
    const columns = chart.stacked ? sums(chart.series).reverse() : chart.series.map((each) => each.values);
    const axis = {
      stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, labelSize: 18,
      labelFont: "11.5px system-ui, sans-serif",
    };
    const upwards = (_, low, high) => {
      const range = uPlot.rangeNum(Math.min(low ?? 0, 0), high ?? 1, 0.05, true);
      return low == null || low >= 0 ? [0, range[1]] : range;
    };
    const powers = { distr: 3, log: 10 };
    const values = (_, ticks) => ticks.map((each) => (each == null ? "" : short(each)));
    const axes = [
      chart.time ? { ...axis, space: 80, values: clocks } : { ...axis, size: 28, values, label: chart.xUnit },
      { ...axis, size: 62, values, label: chart.unit },
    ];
    if (chart.right) axes.push({ ...axis, grid: { show: false }, size: 56, side: 1, scale: "right", values, label: chart.right });
    const hooks = { drawClear: [(plot) => shade(chart, plot)] };
    if (chart.named) hooks.draw = [(plot) => name(chart, plot)];
    const x = { label: chart.xUnit, value: (_, value) => (value == null ? "–" : chart.time ? stamp(value) : short(value)) };
    return new uPlot(
      {
        width: holder.clientWidth,
        height: 280,
        tzDate: utc,
        cursor: { drag: { x: true, y: false }, sync: chart.xPowers ? undefined : { key: chart.xUnit } },
        scales: {
          x: { time: chart.time, ...(chart.xPowers ? powers : {}), min: chart.view?.[0], max: chart.view?.[1] },
          y: chart.powers ? powers : { range: upwards },
          right: { range: upwards },
        },
        axes,
        series: [x, ...order.map((each) => seriesOf(chart, each))],
        hooks,
      },
      [chart.x, ...columns],
      holder,
    );
  }

  for (const chart of charts) {
    const holder = document.getElementById(`chart-${chart.key}`);
    let plot = null;
    const draw = () => {
      plot?.destroy();
      plot = made(chart, holder);
      holder.classList.add("drawn");
    };
    scheme.addEventListener("change", draw);
    new ResizeObserver(() => {
      const width = holder.clientWidth;
      if (width > 0 && plot !== null && plot.width !== width) plot.setSize({ width, height: 280 });
    }).observe(holder);
    draw();
  }
})();
