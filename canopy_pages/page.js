// Draws the plots of a page from the data in it, light or dark as the reader has it; a stretch of time that is chosen in
// one plot is shown in all that share its axis. `drawing.py` says which data there are.
"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const COLOURS = ["#3d84c6", "#cf8a1c", "#2f9e6e", "#d2455b", "#8b68d0", "#3d8a99", "#a85b00", "#85909c"];
  const HEAT = {
    light: ["#dcebf3", "#7fb6d4", "#2c6fa6", "#14213d"],
    dark: ["#14303f", "#1f6f8b", "#59c2a8", "#f6f0a3"],
  };
  const SVG = "http://www.w3.org/2000/svg";

  function make(name, attributes, parent, text) {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  }
  function html(name, className, parent, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  }

  // Cuts a text that is wider than its place, so that it covers no other; all of it shows when one points at it. Half a
  // number would be another number: a figure is left out.
  function fitted(text, room, figure) {
    const whole = text.textContent;
    for (let length = figure ? 0 : whole.length - 1; length >= 0 && text.getComputedTextLength() > room; length -= 1) {
      text.textContent = length ? whole.slice(0, length) + "…" : "";
    }
    if (text.textContent && text.textContent !== whole) make("title", {}, text, whole);
  }

  // -- numbers and times ---------------------------------------------------------------------------------------------

  const plain = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
  const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const shown = (value) => Math.abs(value) >= 1000 ? whole.format(value) : plain.format(value);
  function short(value) {
    for (const [power, unit] of [[1e9, "G"], [1e6, "M"]]) {
      if (Math.abs(value) >= power) return plain.format(value / power) + unit;
    }
    return shown(Number(value.toPrecision(6)));
  }
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
                 1209600, 2592000, 7776000, 31536000];
  function clock(seconds, step) {
    const text = new Date(Math.round(seconds * 1000)).toISOString();
    if (step >= 86400) return text.slice(0, 10);
    return step >= 60 ? text.slice(11, 16) : text.slice(11, 19);
  }

  // -- axes ----------------------------------------------------------------------------------------------------------

  function scale(axis, low, high, from, to) {
    const turn = axis.type === "log" ? Math.log10 : (value) => value;
    const back = axis.type === "log" ? (value) => 10 ** value : (value) => value;
    const a = turn(low), b = turn(high) === a ? a + 1 : turn(high);
    const at = (value) => from + (turn(value) - a) / (b - a) * (to - from);
    at.invert = (place) => back(a + (place - from) / (to - from) * (b - a));
    at.low = low;
    at.high = high;
    return at;
  }

  function ticks(axis, at, most) {
    const unit = axis.ticksuffix || "";
    const inside = (each) => each.value >= at.low * (1 - 1e-9) - 1e-12 && each.value <= at.high * (1 + 1e-9) + 1e-12;
    if (axis.tickvals) {
      const every = Math.ceil(axis.tickvals.length / Math.max(most, 1));
      return axis.tickvals.map((value, n) => ({ value, text: axis.ticktext[n] }))
        .filter((each, n) => n % every === 0 && inside(each));
    }
    if (axis.type === "log") {
      const found = [];
      const low = Math.floor(Math.log10(at.low)), high = Math.ceil(Math.log10(at.high));
      const parts = at.high / at.low <= 100 ? [1, 2, 5] : [1];
      const every = Math.ceil((high - low + 1) / Math.max(most * 1.5, 2));
      for (let power = low; power <= high; power += every) {
        for (const part of parts) found.push({ value: part * 10 ** power, text: short(part * 10 ** power) + unit });
      }
      return found.filter(inside);
    }
    const rough = (at.high - at.low) / Math.max(most, 1);
    if (axis.type === "date") {
      const step = STEPS.find((each) => each >= rough) || STEPS[STEPS.length - 1];
      const found = [];
      for (let value = Math.ceil(at.low / step) * step; value <= at.high; value += step) {
        const first = !found.length || clock(value, 86400) !== clock(found[found.length - 1].value, 86400);
        found.push({ value, text: clock(value, step), below: first && step < 86400 ? clock(value, 86400) : "" });
      }
      return found;
    }
    const power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999) || power;
    const found = [];
    for (let n = Math.ceil(at.low / step); n * step <= at.high + step * 1e-9; n += 1) {
      found.push({ value: n * step, text: short(n * step) + unit });
    }
    return found;
  }

  function extent(values, axis) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value === null || value === undefined || (axis.type === "log" && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return low > high ? null : [low, high];
  }

  // -- one plot ------------------------------------------------------------------------------------------------------

  const bare = (axis) => Object.assign({}, axis || {});

  class Drawing {
    constructor(plot) {
      this.plot = plot;
      this.host = document.getElementById("plot-" + plot.key);
      this.hidden = new Set();
      this.view = null;
      this.x = bare(plot.layout.xaxis);
      this.labels = null;
      plot.traces.forEach((trace, n) => { trace.colour = ((trace.line || trace.marker || {}).color) || COLOURS[n % COLOURS.length]; });
      const words = plot.traces.find((trace) => trace.x && typeof trace.x[0] === "string");
      if (words) {
        // Bars with names: each has its place.
        this.labels = words.x;
        this.x.range = [-0.6, words.x.length - 0.4];
        for (const trace of plot.traces) trace.x = trace.x.map((_, n) => n);
      }
      if (plot.traces.some((trace) => trace.type === "heatmap" && typeof trace.y[0] === "string")) {
        const heat = plot.traces.find((trace) => trace.type === "heatmap");
        plot.layout.yaxis = Object.assign(bare(plot.layout.yaxis), { tickvals: heat.y.map((_, n) => n + 0.5), ticktext: heat.y });
        heat.y = heat.y.map((_, n) => n).concat(heat.y.length);
      }
    }

    get shares() { return this.x.matches || ""; }

    draw() {
      this.host.textContent = "";
      const room = html("div", "canvas", this.host);
      this.legend();
      const width = Math.max(room.clientWidth, 160), height = Math.max(room.clientHeight, 120);
      const svg = make("svg", { class: "drawn", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.plot.title }, room);
      if (this.plot.traces[0].type === "treemap") { treemap(this, svg, width, height); return; }
      this.panels(svg, width, height);
    }

    legend() {
      const named = this.plot.traces.filter((trace) => trace.name);
      if (named.length < 2 || this.plot.layout.showlegend === false) return;
      const list = html("div", "legend", this.host);
      for (const trace of named) {
        const item = html("button", this.hidden.has(trace) ? "off" : "", list);
        item.type = "button";
        html("i", trace.line && trace.line.dash && trace.line.dash !== "solid" ? "dotted" : "", item).style.setProperty("--c", trace.colour);
        html("span", "", item, trace.name);
        item.addEventListener("click", () => {
          if (!this.hidden.delete(trace)) this.hidden.add(trace);
          this.draw();
        });
      }
    }

    panels(svg, width, height) {
      const layout = this.plot.layout, traces = this.plot.traces.filter((trace) => !this.hidden.has(trace));
      const first = { name: "y", axis: bare(layout.yaxis) }, second = layout.yaxis2 && { name: "y2", axis: bare(layout.yaxis2) };
      const beside = second && second.axis.overlaying;
      const own = (side) => traces.filter((trace) => (trace.yaxis || "y") === side.name);
      for (const side of [first, second]) if (side) side.traces = own(side);
      const heat = traces.find((trace) => trace.type === "heatmap");
      const names = first.axis.ticktext ? Math.max(...first.axis.ticktext.map((each) => each.length)) * 6.6 + 12 : 0;
      const box = { left: Math.max(72, names), right: width - (beside ? 58 : heat && heat.colorbar ? 74 : 18), top: layout.annotations || (heat && heat.colorbar) ? 26 : 12, bottom: height - (this.x.type === "date" ? 40 : this.labels ? 40 : this.x.title ? 42 : 26) };
      const xs = extent(traces.flatMap((trace) => trace.width && trace.width.length ? trace.x.flatMap((x, n) => [x - trace.width[n] / 2, x + trace.width[n] / 2]) : trace.x), this.x) || [0, 1];
      let range = this.view || (this.x.range ? this.x.range.map((each) => this.x.type === "log" ? 10 ** each : each) : null);
      if (!range) {
        const pad = this.x.type === "log" || heat ? 0 : (xs[1] - xs[0]) * 0.01 || (this.x.type === "date" ? 30 : 0.5);
        range = xs[0] === xs[1] && this.x.type === "log" ? [xs[0] / 2, xs[0] * 2] : [xs[0] - pad, xs[1] + pad];
      }
      const x = scale(this.x, range[0], range[1], box.left, box.right);
      const clip = "clip-" + this.plot.key;
      make("rect", { x: box.left, y: 0, width: box.right - box.left, height }, make("clipPath", { id: clip }, make("defs", {}, svg)));
      const place = (side) => {
        const domain = side.axis.domain || [0, 1];
        return [box.bottom - domain[0] * (box.bottom - box.top), box.bottom - domain[1] * (box.bottom - box.top)];
      };
      const sides = [first, second].filter((side) => side && (side.traces.length || side === first));
      for (const side of sides) {
        const [from, to] = beside && side === second ? place(first) : place(side);
        side.from = from;
        side.to = to;
        side.scale = this.vertical(side, from, to, x);
        this.frame(svg, side, box, x, beside && side === second);
      }
      const under = make("g", { "clip-path": `url(#${clip})` }, svg);
      for (const shape of layout.shapes || []) {
        for (const side of beside ? [first] : sides) {
          const a = x(shape.x0);
          if (shape.type === "rect") make("rect", { class: "stage", x: a, y: side.to, width: Math.max(x(shape.x1) - a, 0), height: side.from - side.to, fill: shape.fillcolor }, under);
          else make("line", { x1: a, x2: a, y1: side.from, y2: side.to, stroke: shape.line.color, "stroke-dasharray": "2 3" }, under);
        }
      }
      for (const side of sides) {
        const group = make("g", { "clip-path": `url(#${clip})` }, svg);
        const bars = side.traces.filter((trace) => trace.type === "bar");
        if (bars.length) this.bars(group, bars, side, x, bars.length);
        for (const trace of side.traces) {
          if (trace.type === "heatmap") this.cells(svg, group, trace, side, x, box);
          if (trace.type === "scatter") this.line(group, trace, side, x, box);
        }
      }
      const notes = (layout.annotations || []).filter((note) => note.x >= range[0] && note.x <= range[1]);
      notes.forEach((note, n) => {
        const end = n + 1 < notes.length ? x(notes[n + 1].x) : width;
        fitted(make("text", { class: "stage-name", x: x(note.x) + 3, y: box.top - 8 }, svg, note.text), end - x(note.x) - 6);
      });
      this.watch(svg, sides, x, box, traces);
    }

    vertical(side, from, to, x) {
      const axis = side.axis, near = (trace, n) => this.view === null || (trace.x[n] >= x.low && trace.x[n] <= x.high);
      const stacked = this.plot.layout.barmode === "stack" ? new Map() : null;
      const values = [];
      for (const trace of side.traces) {
        if (trace.type === "heatmap") { values.push(trace.y[0], trace.y[trace.y.length - 1]); continue; }
        trace.y.forEach((value, n) => {
          if (!near(trace, n) || value === null) return;
          const whisker = trace.error_y;
          values.push(value + (whisker ? whisker.array[n] : 0));
          if (stacked && trace.type === "bar") { stacked.set(trace.x[n], (stacked.get(trace.x[n]) || 0) + value); values.push(stacked.get(trace.x[n])); }
        });
      }
      const found = extent(values, axis) || (axis.type === "log" ? [1, 10] : [0, 1]);
      let [low, high] = found;
      const heat = side.traces.some((trace) => trace.type === "heatmap");
      if (!heat && axis.type !== "log") {
        if (axis.rangemode === "tozero" || side.traces.some((trace) => trace.type === "bar")) { low = Math.min(low, 0); high = Math.max(high, 0); }
        if (low === high) high = low + 1;
        const pad = (high - low) * 0.06;
        high += pad;
        if (low !== 0) low -= pad;
      } else if (!heat) {
        low /= 1.3;
        high *= 1.3;
      }
      return scale(axis, low, high, from, to);
    }

    frame(svg, side, box, x, right) {
      const group = make("g", { class: "axes" }, svg), axis = side.axis;
      const edge = right ? box.right : box.left;
      for (const tick of ticks(axis, side.scale, Math.max(2, Math.floor((side.from - side.to) / 44)))) {
        const y = side.scale(tick.value);
        if (!right) make("line", { x1: box.left, x2: box.right, y1: y, y2: y }, group);
        make("text", { x: edge + (right ? 6 : -6), y: y + 4, "text-anchor": right ? "start" : "end" }, group, tick.text);
      }
      const title = axis.title && axis.title.text;
      if (title) {
        const at = right ? box.right + 50 : 13, middle = (side.from + side.to) / 2;
        make("text", { class: "axis-title", x: at, y: middle, "text-anchor": "middle", transform: `rotate(-90 ${at} ${middle})` }, group, title);
      }
      if (right || side.from < box.bottom - 1) return;
      make("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }, group);
      if (this.labels) {
        const each = (box.right - box.left) / this.labels.length - 4;
        this.labels.forEach((label, n) => label.split("\n").forEach((text, line) =>
          fitted(make("text", { class: line ? "value" : "", x: x(n), y: box.bottom + 15 + 14 * line, "text-anchor": "middle" }, group, text), each, line > 0)));
        return;
      }
      for (const tick of ticks(this.x, x, Math.max(2, Math.floor((box.right - box.left) / 84)))) {
        const at = x(tick.value);
        make("line", { x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4, class: "base" }, group);
        const anchor = at > box.right - 24 && tick.text.length > 4 ? "end" : "middle";
        make("text", { x: at, y: box.bottom + 17, "text-anchor": anchor }, group, tick.text);
        if (tick.below) make("text", { class: "day", x: at, y: box.bottom + 31, "text-anchor": anchor }, group, tick.below);
      }
      const under = this.x.title && this.x.title.text;
      if (under) make("text", { class: "axis-title", x: (box.left + box.right) / 2, y: box.bottom + 35, "text-anchor": "middle" }, group, under);
    }

    line(group, trace, side, x, box) {
      const mode = trace.mode || "lines", step = trace.line && trace.line.shape === "hv";
      const usable = (n) => trace.y[n] !== null && trace.x[n] !== null && (side.axis.type !== "log" || trace.y[n] > 0);
      if (mode.includes("lines")) {
        let path = "", open = false, before = 0;
        for (let n = 0; n < trace.x.length; n += 1) {
          if (!usable(n)) { open = false; continue; }
          const a = x(trace.x[n]).toFixed(1), b = side.scale(trace.y[n]).toFixed(1);
          path += !open ? `M${a} ${b}` : step ? `L${a} ${before}L${a} ${b}` : `L${a} ${b}`;
          open = true;
          before = b;
        }
        const dash = trace.line && { dot: "2 3", dash: "6 4" }[trace.line.dash];
        make("path", Object.assign({ class: "curve", d: path, stroke: trace.colour, "stroke-width": (trace.line && trace.line.width) || 1.6 }, dash ? { "stroke-dasharray": dash } : {}), group);
      }
      if (mode.includes("markers")) {
        for (let n = 0; n < trace.x.length; n += 1) {
          if (usable(n)) make("circle", { class: "point", cx: x(trace.x[n]), cy: side.scale(trace.y[n]), r: (trace.marker && trace.marker.size || 6) / 2, fill: trace.colour }, group);
        }
      }
    }

    bars(group, bars, side, x, many) {
      const stacked = this.plot.layout.barmode === "stack", heights = new Map();
      const all = [...new Set(bars.flatMap((trace) => trace.x))].sort((a, b) => a - b);
      let gap = Infinity;
      for (let n = 1; n < all.length; n += 1) gap = Math.min(gap, all[n] - all[n - 1]);
      if (gap === Infinity) gap = this.labels ? 1 : this.x.type === "date" ? 60 : 1;
      const zero = side.scale(side.axis.type === "log" ? side.scale.low : Math.max(0, side.scale.low));
      bars.forEach((trace, at) => {
        const own = make("g", { class: "bars" }, group);
        trace.x.forEach((value, n) => {
          if (!trace.y[n]) return;
          const wide = trace.width ? trace.width[n] : gap * (this.labels ? 0.7 : 1);
          let a = x(value - wide / 2), b = x(value + wide / 2), base = zero, top = side.scale(trace.y[n]);
          if (stacked) {
            const below = heights.get(value) || 0;
            base = side.scale(below);
            top = side.scale(below + trace.y[n]);
            heights.set(value, below + trace.y[n]);
          } else if (many > 1) {
            const part = (b - a) / many;
            a += part * at;
            b = a + part;
          }
          const colours = trace.marker && Array.isArray(trace.marker.color) ? trace.marker.color[n] : trace.colour;
          make("rect", { x: a, y: Math.min(base, top), width: Math.max(b - a - (b - a > 4 ? 1 : 0), 1), height: Math.max(Math.abs(base - top), 1), fill: colours }, own);
          if (trace.error_y) {
            const middle = (a + b) / 2;
            make("path", { class: "whisker", d: `M${middle} ${side.scale(trace.y[n] - trace.error_y.arrayminus[n])}V${side.scale(trace.y[n] + trace.error_y.array[n])}` }, own);
          }
        });
      });
    }

    cells(svg, group, trace, side, x, box) {
      const levels = trace.z.flat().filter((level) => level !== null);
      const low = trace.zmin ?? Math.min(...levels), high = trace.zmax ?? Math.max(...levels);
      const paint = shades(dark.matches ? HEAT.dark : HEAT.light);
      const own = make("g", { class: "cells", "shape-rendering": "crispEdges" }, group);
      // Cells of a row that look alike and stand beside each other are one rectangle.
      trace.z.forEach((row, n) => {
        const from = side.scale(trace.y[n]), to = side.scale(trace.y[n + 1]);
        for (let at = 0; at < row.length; at += 1) {
          if (row[at] === null) continue;
          let end = at;
          while (end + 1 < row.length && row[end + 1] === row[at]) end += 1;
          const a = x(trace.x[at]), b = x(trace.x[end + 1]);
          make("rect", { x: a, y: Math.min(from, to), width: Math.max(b - a, 1), height: Math.max(Math.abs(from - to), 1), fill: paint((row[at] - low) / (high - low || 1)) }, own);
          at = end;
        }
      });
      if (!trace.colorbar) return;
      const ramp = make("linearGradient", { id: "ramp-" + this.plot.key, x1: 0, x2: 0, y1: 1, y2: 0 }, make("defs", {}, svg));
      for (let n = 0; n <= 6; n += 1) make("stop", { offset: n / 6, "stop-color": paint(n / 6) }, ramp);
      make("rect", { x: box.right + 12, y: box.top, width: 9, height: box.bottom - box.top, fill: `url(#ramp-${this.plot.key})` }, svg);
      const level = scale({}, low, high, box.bottom, box.top), bar = { tickvals: trace.colorbar.tickvals, ticktext: trace.colorbar.ticktext };
      const group2 = make("g", { class: "axes" }, svg);
      for (const tick of ticks(bar, level, 9)) make("text", { x: box.right + 26, y: level(tick.value) + 4 }, group2, tick.text);
      make("text", { x: box.right + 12, y: box.top - 10 }, group2, (trace.colorbar.title || {}).text || "");
    }

    // What the pointer is over, and the stretch of time that it marks.
    watch(svg, sides, x, box, traces) {
      const cross = make("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" }, svg);
      const marked = make("rect", { class: "marked", y: box.top, height: box.bottom - box.top, visibility: "hidden" }, svg);
      const tip = html("div", "tip", this.host);
      const zooms = !this.labels && !coarse.matches;
      let begun = null;
      const where = (event) => Math.min(Math.max(event.clientX - svg.getBoundingClientRect().left, box.left), box.right);
      const leave = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
      leave();
      svg.addEventListener("pointerleave", leave);
      svg.addEventListener("pointermove", (event) => {
        const at = where(event);
        if (begun !== null) {
          marked.setAttribute("x", Math.min(at, begun));
          marked.setAttribute("width", Math.abs(at - begun));
          marked.setAttribute("visibility", "visible");
        }
        const lines = this.told(x.invert(at), event.clientY - svg.getBoundingClientRect().top, sides, x, traces);
        if (!lines.length) { leave(); return; }
        cross.setAttribute("x1", at);
        cross.setAttribute("x2", at);
        cross.setAttribute("visibility", "visible");
        tip.textContent = "";
        lines.forEach((line, n) => html("div", n ? "" : "head", tip, line));
        tip.hidden = false;
        tip.style.left = at + (at > (box.left + box.right) / 2 ? -12 - tip.offsetWidth : 12) + "px";
        tip.style.top = box.top + 4 + "px";
      });
      if (!zooms) return;
      svg.addEventListener("pointerdown", (event) => { begun = where(event); svg.setPointerCapture(event.pointerId); });
      svg.addEventListener("pointerup", (event) => {
        const at = where(event), from = begun;
        begun = null;
        marked.setAttribute("visibility", "hidden");
        if (from !== null && Math.abs(at - from) > 6) zoom(this, [x.invert(Math.min(at, from)), x.invert(Math.max(at, from))]);
      });
      svg.addEventListener("dblclick", () => zoom(this, null));
    }

    told(value, y, sides, x, traces) {
      const head = this.x.type === "date" ? new Date(value * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC"
        : short(Number(value.toPrecision(4))) + (this.x.ticksuffix || "");
      const heat = traces.find((trace) => trace.type === "heatmap");
      if (heat) {
        const column = heat.x.findIndex((edge, n) => value >= edge && value < heat.x[n + 1]);
        const level = sides[0].scale.invert(y), row = heat.y.findIndex((edge, n) => level >= edge && level < heat.y[n + 1]);
        const cell = row < 0 || column < 0 || row >= heat.z.length ? null : (heat.customdata || heat.z)[row][column];
        const names = sides[0].axis.ticktext;
        return cell === null || cell === undefined ? [] : [head, (names ? names[row] : short(heat.y[row]) + " " + ((sides[0].axis.title || {}).text || "")) + ": " + short(cell) + ((heat.colorbar && heat.colorbar.title.text) || "")];
      }
      const found = [];
      for (const trace of traces) {
        let best = -1, away = 40;
        trace.x.forEach((each, n) => {
          const distance = each === null || trace.y[n] === null ? Infinity : Math.abs(x(each) - x(value));
          if (distance < away) { away = distance; best = n; }
        });
        if (best >= 0) found.push(`${trace.name || ((sides[0].axis.title || {}).text || "")} ${short(trace.y[best])}`);
      }
      return found.length ? [this.labels ? this.labels[Math.round(value)] || "" : head, ...found] : [];
    }
  }

  function zoom(source, view) {
    for (const drawing of drawings) {
      if (drawing === source || (source.shares && drawing.shares === source.shares)) {
        drawing.view = view;
        drawing.draw();
      }
    }
  }

  function shades(stops) {
    const parts = stops.map((each) => [1, 3, 5].map((at) => parseInt(each.slice(at, at + 2), 16)));
    return (level) => {
      const at = Math.min(Math.max(level, 0), 1) * (parts.length - 1), low = Math.min(Math.floor(at), parts.length - 2);
      return `rgb(${parts[low].map((part, n) => Math.round(part + (parts[low + 1][n] - part) * (at - low))).join(",")})`;
    };
  }

  // -- trees ---------------------------------------------------------------------------------------------------------

  const LEVELS = 4;
  const HUES = [207, 152, 36, 350, 262, 186, 90, 20, 300, 230];

  function treemap(drawing, svg, width, height) {
    const trace = drawing.plot.traces[0], nodes = new Map();
    trace.ids.forEach((id, n) => nodes.set(id, { id, name: trace.labels[n], value: trace.values[n], path: trace.paths[n], more: trace.notes[n], children: [], up: null }));
    let root = null;
    trace.ids.forEach((id, n) => {
      const node = nodes.get(id), up = nodes.get(trace.parents[n]);
      if (up) { node.up = up; up.children.push(node); } else root = node;
    });
    for (const node of nodes.values()) node.children.sort((a, b) => b.value - a.value);
    // Where the tree parts first, its branches get a colour each.
    let trunk = root;
    while (trunk.children.length === 1) trunk = trunk.children[0];
    trunk.children.forEach((node, n) => { node.hue = HUES[n % HUES.length]; });
    const hue = (node) => node.hue !== undefined ? node.hue : node.up ? hue(node.up) : 207;
    const shown = drawing.inside && nodes.get(drawing.inside) || root;
    const fill = (node, depth) => dark.matches ? `hsl(${hue(node)} 42% ${22 + 7 * depth}%)` : `hsl(${hue(node)} 52% ${84 - 8 * depth}%)`;
    const enter = (node) => { drawing.inside = node.id; drawing.draw(); };
    function box(node, x, y, w, h, depth) {
      if (w < 2 || h < 2) return;
      const group = make("g", { class: "branch" }, svg);
      const rect = make("rect", { x: x + 0.5, y: y + 0.5, width: w - 1, height: h - 1, fill: depth ? fill(node, depth) : "transparent" }, group);
      const share = 100 * node.value / (root.value || 1);
      make("title", {}, rect, `${node.path}\n${short(node.value)} ${trace.unit} (${plain.format(share)} %)\n${node.more}`);
      const up = node === shown && node.up;
      if (node.children.length && depth && node !== shown) { rect.classList.add("leads"); rect.addEventListener("click", () => enter(node)); }
      if (up) { rect.classList.add("leads"); rect.addEventListener("click", () => enter(node.up)); }
      const named = w > 34 && h > 15;
      if (named) {
        const text = (up ? "↑ " : "") + (depth ? node.name : node.path) + (h > 30 || !depth ? "  " + short(node.value) : "");
        const most = Math.floor((w - 8) / 6.7);
        make("text", { x: x + 5, y: y + 14 }, group, text.length > most ? text.slice(0, Math.max(most - 1, 1)) + "…" : text);
      }
      if (depth >= LEVELS || !node.children.length || h < 34 || w < 34) return;
      squares(node, x + 3, y + 19, w - 6, h - 22, (child, a, b, c, d) => box(child, a, b, c, d, depth + (depth && node.children.length === 1 ? 0 : 1)));
    }
    box(shown, 0, 0, width, height, 0);
  }

  // Children as rectangles that are as square as can be; what the drawn children do not make up stays empty.
  function squares(node, x, y, w, h, put) {
    const total = Math.max(node.value, node.children.reduce((sum, each) => sum + each.value, 0)) || 1;
    const unit = w * h / total;
    let rest = node.children.filter((each) => each.value > 0);
    while (rest.length && w > 1 && h > 1) {
      const side = Math.min(w, h);
      let row = [], area = 0, worst = Infinity;
      for (const each of rest) {
        const next = area + each.value * unit, thick = next / side;
        const ratio = Math.max(...[...row, each].map((one) => { const long = one.value * unit / thick; return Math.max(long / thick, thick / long); }));
        if (ratio > worst) break;
        worst = ratio;
        row.push(each);
        area = next;
      }
      const thick = area / side;
      let along = 0;
      for (const each of row) {
        const long = each.value * unit / thick;
        if (w >= h) put(each, x, y + along, thick, long); else put(each, x + along, y, long, thick);
        along += long;
      }
      if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
      rest = rest.slice(row.length);
    }
  }

  // ------------------------------------------------------------------------------------------------------------------

  const drawings = [];
  for (const plot of plots) {
    try {
      const drawing = new Drawing(plot);
      drawings.push(drawing);
      drawing.draw();
      drawing.host.dataset.drawn = "yes";
    } catch (error) {
      document.getElementById("plot-" + plot.key).textContent = "This plot could not be drawn: " + error;
      console.error(plot.key, error);
    }
  }
  const again = () => drawings.forEach((drawing) => drawing.draw());
  dark.addEventListener("change", again);
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; again(); } });
})();
