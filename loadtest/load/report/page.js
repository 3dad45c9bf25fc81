// Draws the plots of the page from the data in it, light or dark as the reader has it, and keeps the time axes together.
"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 40rem)");
  const coarse = window.matchMedia("(pointer: coarse)");

  // The colours of the page (page.css), so that plots and text agree.
  function template() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {
      gridcolor: colour("--rule"), linecolor: colour("--rule"), zerolinecolor: colour("--rule"),
      tickcolor: colour("--rule"), automargin: true,
    };
    const heat = dark.matches
      ? [[0, "#14303f"], [0.35, "#1f6f8b"], [0.7, "#59c2a8"], [1, "#f6f0a3"]]
      : [[0, "#dcebf3"], [0.35, "#7fb6d4"], [0.7, "#2c6fa6"], [1, "#14213d"]];
    return {
      layout: {
        font: { family: style.fontFamily || "sans-serif", size: 12, color: colour("--soft") },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--rule"), font: { color: colour("--ink") } },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--ink") },
        xaxis: axis, yaxis: axis,
      },
      data: { heatmap: [{ colorscale: heat }] },
    };
  }

  function layout(plot) {
    const below = { orientation: "h", x: 0, y: -0.1, yanchor: "top" };
    return Object.assign({
      template: template(),
      margin: narrow.matches ? { l: 44, r: 12, t: 28, b: 30 } : { l: 60, r: 18, t: 30, b: 30 },
      hovermode: plot.key === "heat" ? "closest" : "x unified",
      dragmode: coarse.matches ? false : "zoom",  // a finger scrolls the page
    }, plot.layout, { legend: Object.assign(below, plot.layout.legend) });
  }

  // The buttons are named one by one: left to itself, plotly offers to send the chart to its makers.
  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false, displayModeBar: coarse.matches ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  const place = (plot) => document.getElementById("plot-" + plot.key);
  const timed = plots.filter((plot) => plot.key !== "spectrum");

  // A stretch of time chosen in one plot is shown in all of them.
  let following = false;
  function follow(source, change) {
    const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
    const whole = change["xaxis.autorange"];
    if (following || (from === undefined && !whole)) return;
    following = true;
    Promise.all(timed.filter((plot) => plot !== source).map((plot) =>
      Plotly.relayout(place(plot), { "xaxis.range": whole ? plot.layout.xaxis.range.slice() : [from, to] })
    )).finally(() => { following = false; });
  }

  for (const plot of plots) {
    plot.layout.xaxis = plot.layout.xaxis || {};
    const initial = JSON.parse(JSON.stringify(plot.layout));
    Plotly.newPlot(place(plot), plot.traces, layout(Object.assign({}, plot, { layout: initial })), config)
      .then((drawn) => {
        drawn.dataset.drawn = "yes";
        if (plot.key !== "spectrum") drawn.on("plotly_relayout", (change) => follow(plot, change));
      })
      .catch((error) => {
        place(plot).textContent = "This plot could not be drawn: " + error;
        console.error(plot.key, error);
      });
  }
  dark.addEventListener("change", () => {
    for (const plot of plots) Plotly.relayout(place(plot), { template: template() });
  });
})();
