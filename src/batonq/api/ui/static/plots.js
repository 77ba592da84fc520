// Plots of the dashboard. All plots of a page share one time axis and one crosshair.
"use strict";
window.batonPlots = (() => {
  const COLOURS = {
    sent: "--sent", received: "--received", acked: "--acked", retried: "--retried", deadLettered: "--dead",
    expired: "--delayed", visible: "--visible", inFlight: "--received", delayed: "--delayed", oldestSeconds: "--visible",
    P50: "--p50", P95: "--p95", P99: "--p99",
  };
  const percentiles = (name) => ["P50", "P95", "P99"].map((p) => [`${name}${p}Ms`, p.toLowerCase()]);
  const KINDS = {
    rates: { unit: "rate", series: [["sent", "sent"], ["received", "received"], ["acked", "acknowledged"]] },
    failures: { unit: "rate", series: [["retried", "retried"], ["deadLettered", "dead-lettered"], ["expired", "expired"]] },
    depth: { unit: "count", series: [["visible", "visible"], ["inFlight", "in flight"], ["delayed", "delayed"]] },
    oldest: { unit: "seconds", series: [["oldestSeconds", "oldest"]] },
    endToEnd: { unit: "ms", series: percentiles("endToEnd") },
    queueWait: { unit: "ms", series: percentiles("queueWait") },
    handling: { unit: "ms", series: percentiles("handling") },
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (name) => css(COLOURS[name] || COLOURS[(name.match(/P\d\d/) || [""])[0]] || "--accent");

  function duration(s) {
    if (s === 0) return "0";
    if (s < 0.001) return `${(s * 1e6).toFixed(0)} µs`;
    if (s < 1) return `${(s * 1000).toPrecision(s < 0.01 ? 2 : 3).replace(/\.0+$/, "")} ms`;
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
      if (s >= size) return `${+(s / size).toFixed(1)} ${unit}`;
    return `${+s.toFixed(1)} s`;
  }
  function count(value) {
    if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
    if (value >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
    return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });
  }
  const two = (number) => String(number).padStart(2, "0");
  function clock(at, x) {
    const time = new Date(at * 1000), long = x.length && x[x.length - 1] - x[0] > 90000;
    const day = `${time.getDate()} ${time.toLocaleString("en", { month: "short" })}`;
    const hour = `${two(time.getHours())}:${two(time.getMinutes())}`;
    return long ? (hour === "00:00" ? day : `${day} ${hour}`) : hour === "00:00" ? day : hour;
  }
  const WRITTEN = {
    rate: (v) => `${v.toLocaleString("en", { maximumFractionDigits: v < 10 ? 1 : 0 })}/s`,
    count: (v) => v.toLocaleString("en", { maximumFractionDigits: 0 }),
    seconds: duration, ms: (v) => duration(v / 1000),
  };
  const STEPS_S = [.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];
  const STEPS = { seconds: STEPS_S, ms: STEPS_S.map((s) => s * 1000) };
  const TICK = { rate: count, count, seconds: duration, ms: (v) => duration(v / 1000) };

  function marks(box) {
    return { hooks: { draw: [(u) => {
      const context = u.ctx;
      context.save();
      context.strokeStyle = css("--accent");
      context.setLineDash([3, 3]);
      for (const mark of box.marks) {
        const x = u.valToPos(mark.atMs / 1000, "x", true);
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
        context.beginPath();
        context.moveTo(x, u.bbox.top);
        context.lineTo(x, u.bbox.top + u.bbox.height);
        context.stroke();
      }
      context.restore();
    }] } };
  }

  function times(data) {
    const start = data.startAtMs / 1000, step = data.stepSeconds;
    const names = Object.keys(data.values);
    const length = names.length ? data.values[names[0]].length : 0;
    return Array.from({ length }, (_, i) => start + i * step);
  }

  class Box {
    constructor(section) {
      this.section = section;
      this.url = section.dataset.series;
      this.key = `baton-${Math.random()}`;
      this.plots = [];
      this.marks = [];
      this.load();
    }
    async load() {
      clearTimeout(this.timer);
      let waitS = 10;
      if (!document.hidden) {
        try {
          const answer = await fetch(this.url, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(8000) });
          const data = await answer.json();
          if (!answer.ok) throw new Error(data.detail || "The plots could not be loaded.");
          if (!this.section.isConnected) return;
          this.show(data);
          waitS = Math.min(60, Math.max(5, data.stepSeconds));
        } catch (problem) {
          if (!this.plots.length) this.fail(problem.message);
        }
      }
      if (this.section.isConnected) this.timer = setTimeout(() => this.load(), waitS * 1000);
    }
    fail(text) {
      for (const figure of this.section.querySelectorAll("[data-plot] .canvas")) {
        const said = document.createElement("p");
        said.className = "soft";
        said.textContent = text;
        figure.replaceChildren(said);
      }
    }
    show(data) {
      this.data = data;
      this.marks = data.marks || [];
      this.x = times(data);
      if (this.plots.length) {
        for (const one of this.plots) one.plot.setData(this.columns(one.kind));
        this.legends();
        return;
      }
      for (const figure of this.section.querySelectorAll("[data-plot]")) this.draw(figure);
      this.legends();
    }
    columns(kind) {
      return [this.x, ...kind.series.map(([name]) => this.data.values[name] || this.x.map(() => null))];
    }
    draw(figure) {
      const kind = KINDS[figure.dataset.plot];
      const canvas = figure.querySelector(".canvas");
      canvas.replaceChildren();
      let legend = figure.querySelector(".legend");
      if (!legend) {
        legend = document.createElement("span");
        legend.className = "legend";
        figure.querySelector("figcaption").append(legend);
      }
      const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const options = {
        width: Math.max(200, canvas.clientWidth), height: 150, padding: [8, 18, 0, 0],
        cursor: { sync: { key: this.key }, drag: { x: false, y: false }, points: { size: 5 }, y: false },
        legend: { show: false },
        scales: { x: { time: true }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [{ ...axis, space: 70, size: 24, values: (u, ticks) => ticks.map((at) => clock(at, this.x)) }, { ...axis, size: 56, space: 34, incrs: STEPS[kind.unit], values: (u, ticks) => ticks.map((v) => TICK[kind.unit](v)) }],
        series: [{}, ...kind.series.map(([name]) => ({ stroke: colour(name), width: 1.5, points: { show: false }, spanGaps: false, dash: name === "deadLettered" ? [4, 3] : undefined }))],
        plugins: [marks(this)],
        hooks: { setCursor: [() => this.legends()] },
      };
      const plot = new uPlot(options, this.columns(kind), canvas);
      this.plots.push({ plot, kind, legend, canvas });
      new ResizeObserver(() => {
        const width = canvas.clientWidth;
        if (width && Math.abs(width - plot.width) > 1) plot.setSize({ width, height: 150 });
      }).observe(canvas);
    }
    legends() {
      const at = this.plots.length ? this.plots[0].plot.cursor.idx : null;
      const hovering = at !== null && at !== undefined && this.plots[0].plot.cursor.left >= 0;
      for (const { kind, legend } of this.plots) {
        const items = kind.series.map(([name, label]) => {
          const values = this.data.values[name] || [];
          let value = hovering ? values[at] : null;
          if (!hovering) for (let i = values.length - 1; i >= 0 && value === null; i--) value = values[i] ?? null;
          const item = document.createElement("span");
          const swatch = document.createElement("i");
          swatch.style.background = colour(name);
          const figure = document.createElement("b");
          figure.textContent = value === null || value === undefined ? "–" : WRITTEN[kind.unit](value);
          item.append(swatch, `${label} `, figure);
          return item;
        });
        legend.replaceChildren(...items);
      }
      const clock = this.section.querySelector(".plot-time");
      if (!clock) return;
      const mark = hovering ? this.marks.find((m) => Math.abs(m.atMs / 1000 - this.x[at]) <= this.data.stepSeconds) : null;
      clock.textContent = hovering ? new Date(this.x[at] * 1000).toLocaleString("en-GB") + (mark ? ` · ${mark.text}` : "") : "";
    }
    redraw() {
      for (const { plot } of this.plots) plot.destroy();
      this.plots = [];
      if (this.data) this.show(this.data);
    }
  }

  let boxes = [];
  function start(root) {
    boxes = boxes.filter((box) => box.section.isConnected);
    for (const section of root.querySelectorAll("[data-series]"))
      if (!boxes.some((box) => box.section === section)) boxes.push(new Box(section));
  }
  return { start, redraw: () => boxes.forEach((box) => box.redraw()) };
})();
