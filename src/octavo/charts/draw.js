// Draws the figures of a page: reads their JSON, gives it to uPlot, and adds what it leaves to others: a legend that
// toggles, a tip under the cursor, keys, intervals, points, lanes. Knows figure.py's JSON and nothing of what it means.
"use strict";
(() => {
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue("--" + name).trim();
  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const finite = (value) => value !== null && value !== undefined && Number.isFinite(value);

  // ---- numbers, as figure.py shows them

  const three = (value) => {
    const size = Math.abs(value);
    if (size >= 99.95 || value === Math.round(value)) return Math.round(value).toLocaleString("en-US");
    return size < 1 ? String(Number(value.toPrecision(3))) : value.toFixed(size >= 9.995 ? 1 : 2);
  };
  const seconds = (value) => {
    const size = Math.abs(value);
    if (size > 0 && size < 0.9995e-3) return three(value * 1e6) + " µs";
    return size < 0.9995 && size > 0 ? three(value * 1e3) + " ms" : three(value) + " s";
  };
  const shown = (value, axis) => {
    if (!finite(value)) return "–";
    if (axis.quantity === "share") return three(value * 100) + " %";
    if (axis.quantity === "time") return seconds(value);
    return three(value) + (axis.unit ? " " + axis.unit : "");
  };
  // The unit once, where it is the same.
  const range = (low, high) => {
    const [number, ...unit] = low.split(" ");
    return `${high.endsWith(" " + unit.join(" ")) ? number : low} to ${high}`;
  };
  const brief = (value) => Number(value.toPrecision(10)).toLocaleString("en-US", {
    notation: Math.abs(value) >= 1e4 ? "compact" : "standard", maximumFractionDigits: 6,
  });
  // All of an axis in one unit, but for a log axis over decades, where each has its own.
  const ticks = (axis) => (plot, splits) => {
    const there = splits.filter(finite);
    const largest = Math.max(...there.map(Math.abs), 0);
    return splits.map((value) => {
      if (!finite(value)) return "";
      if (axis.quantity === "share") return brief(value * 100) + " %";
      if (axis.quantity !== "time") return brief(value);
      if (axis.log && largest > 10 * Math.min(...there)) return seconds(value);
      const [scale, unit] = largest < 1e-3 ? [1e6, " µs"] : largest < 1 ? [1e3, " ms"] : [1, " s"];
      return brief(value * scale) + unit;
    });
  };
  // Of a log axis: round numbers of each decade, fewer of each where there are many decades; even steps within one.
  const logSplits = (plot, axis, low, high) => {
    const decades = Math.log10(high / low);
    const found = [];
    if (decades < 0.7) {
      const rough = (high - low) / 8, unit = 10 ** Math.floor(Math.log10(rough));
      const step = unit * [1, 2, 5, 10].find((one) => one * unit >= rough);
      for (let n = Math.ceil(low / step); n * step <= high; n++) found.push(n * step);
      return found;
    }
    const leads = decades < 2.5 ? [1, 2, 5] : [1];
    const every = Math.ceil(decades / 8);
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += every) {
      for (const lead of leads) {
        const value = Number(`${lead}e${power}`);
        if (value >= low && value <= high) found.push(value);
      }
    }
    return found;
  };

  // ---- ranges

  const over = (axis, values) => {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (!finite(value) || (axis.log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) [low, high] = axis.log ? [1, 10] : [0, 1];
    if (finite(axis.low)) low = Math.min(low, axis.low);
    if (finite(axis.high)) high = Math.max(high, axis.high);
    return [low, high];
  };
  const roomy = (axis, [low, high]) => {
    if (axis.log) {
      const room = Math.max(1.05, (high / low) ** 0.04);
      return [low / room, high * room];
    }
    if (low === high) return low === 0 ? [0, 1] : [Math.min(0, low), high * 1.2];
    const room = (high - low) * 0.06;
    const [fixedLow, fixedHigh] = [axis.low === low, axis.high === high];
    return [fixedLow ? low : low >= 0 && low - room < 0 ? 0 : low - room, fixedHigh ? high : high + room];
  };

  // ---- painting, in the canvas's own pixels

  const paintShades = (plot, figure) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const shade of figure.shades) {
      const from = plot.valToPos(shade.start, "x", true), to = plot.valToPos(shade.end, "x", true);
      ctx.fillStyle = colour("shade");
      ctx.fillRect(from, bbox.top, to - from, bbox.height);
      const left = Math.max(from, bbox.left), right = Math.min(to, bbox.left + bbox.width);
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      if (right - left > ctx.measureText(shade.label).width + 8 * devicePixelRatio) {
        ctx.fillStyle = colour("soft");
        // Lanes go down to the right: the corners that stay empty are at the lower left and the upper right.
        const corner = figure.kind !== "lanes" ? "upper left" : shade === figure.shades[0] ? "lower left" : "upper right";
        const gap = 4 * devicePixelRatio;
        ctx.textAlign = corner.endsWith("right") ? "right" : "left";
        ctx.textBaseline = corner.startsWith("lower") ? "bottom" : "top";
        ctx.fillText(shade.label, corner.endsWith("right") ? right - gap : left + gap,
          corner.startsWith("lower") ? bbox.top + bbox.height - gap : bbox.top + gap);
      }
    }
    ctx.restore();
  };

  const paintBounds = (plot, figure) => {
    const { ctx, bbox } = plot, dpr = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("bad");
    ctx.lineWidth = 1.5 * dpr;
    ctx.setLineDash([6 * dpr, 4 * dpr]);
    ctx.font = `${11 * dpr}px system-ui, sans-serif`;
    for (const bound of figure.bounds) {
      const at = plot.valToPos(bound.at, bound.axis, true);
      const flat = bound.axis === "y";
      const [low, size] = flat ? [bbox.top, bbox.height] : [bbox.left, bbox.width];
      if (!(at >= low - 1 && at <= low + size + 1)) continue;
      ctx.beginPath();
      ctx.moveTo(flat ? bbox.left : at, flat ? at : bbox.top);
      ctx.lineTo(flat ? bbox.left + bbox.width : at, flat ? at : bbox.top + bbox.height);
      ctx.stroke();
      if (flat) {
        ctx.textAlign = "right";
        ctx.textBaseline = at - low < 16 * dpr ? "top" : "bottom";
        ctx.fillText(bound.label, bbox.left + bbox.width - 4 * dpr, at + (at - low < 16 * dpr ? 3 : -3) * dpr);
      } else {
        const right = at - low > size * 0.7;
        ctx.textAlign = right ? "right" : "left";
        ctx.textBaseline = "bottom";
        ctx.fillText(bound.label, at + (right ? -4 : 4) * dpr, bbox.top + bbox.height - 4 * dpr);
      }
    }
    ctx.restore();
  };

  const paintMarks = (plot, figure, state) => {
    const { ctx, bbox } = plot, dpr = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - 4 * dpr, bbox.width + 4 * dpr, bbox.height + 8 * dpr);
    ctx.clip();
    figure.series.forEach((series, place) => {
      if (!state.on[place] || !(series.kind === "points" || series.kind === "path")) return;
      const at = series.x.map((x, i) => finite(series.y[i]) && !(figure.y.log && series.y[i] <= 0) && [
        plot.valToPos(x, "x", true), plot.valToPos(series.y[i], "y", true)]);
      ctx.strokeStyle = ctx.fillStyle = colour("c" + series.colour);
      ctx.lineWidth = 1.75 * dpr;
      if (series.kind === "path") {
        ctx.beginPath();
        ctx.setLineDash(series.dashed ? [5 * dpr, 4 * dpr] : []);
        at.forEach((point, i) => point && (i && at[i - 1] ? ctx.lineTo(...point) : ctx.moveTo(...point)));
        ctx.stroke();
        ctx.setLineDash([]);
      }
      const many = at.length > 200, radius = (many ? 1.75 : 3.25) * dpr;
      ctx.globalAlpha = many ? 0.6 : 1;
      at.forEach((point, i) => {
        if (!point) return;
        if (series.low && finite(series.low[i]) && finite(series.high[i])) {
          const low = plot.valToPos(Math.max(series.low[i], figure.y.log ? plot.scales.y.min : -Infinity), "y", true);
          const high = plot.valToPos(series.high[i], "y", true);
          ctx.beginPath();
          ctx.moveTo(point[0], low);
          ctx.lineTo(point[0], high);
          for (const end of [low, high]) {
            ctx.moveTo(point[0] - 4 * dpr, end);
            ctx.lineTo(point[0] + 4 * dpr, end);
          }
          ctx.stroke();
        }
        ctx.beginPath();
        ctx.arc(point[0], point[1], radius, 0, 2 * Math.PI);
        ctx.fill();
      });
      ctx.globalAlpha = 1;
    });
    ctx.restore();
  };

  const paintLanes = (plot, figure, state) => {
    const { ctx, bbox } = plot;
    const room = bbox.height / Math.max(1, figure.names.length);
    const gap = room > 4 * devicePixelRatio ? devicePixelRatio : 0;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    figure.classes.forEach((one, place) => {
      if (!state.on[place]) return;
      ctx.fillStyle = colour("c" + one.colour);
      for (let i = 0; i < figure.lane.length; i++) {
        if (figure.of[i] !== place) continue;
        const from = plot.valToPos(figure.start[i], "x", true), to = plot.valToPos(figure.end[i], "x", true);
        if (to < bbox.left || from > bbox.left + bbox.width) continue;
        ctx.fillRect(from, bbox.top + figure.lane[i] * room, Math.max(to - from, devicePixelRatio), Math.max(room - gap, 0.5));
      }
    });
    ctx.restore();
  };

  // ---- what is under the cursor

  const nearest = (series, x, log) => {
    let best = -1, least = Infinity;
    for (let i = 0; i < series.x.length; i++) {
      if (!finite(series.y[i])) continue;
      const far = log ? Math.abs(Math.log(series.x[i] / x)) : Math.abs(series.x[i] - x);
      if (far < least) [best, least] = [i, far];
    }
    return best;
  };
  const line = (name, key, value) => {
    const row = element("div");
    if (key) row.append(element("i", "k" + key));
    row.append(element("span", "", name), element("b", "", value));
    return row;
  };

  const tipOfSeries = (plot, figure, state, x, left, top) => {
    const rows = [element("div", "at", `${figure.x.label}: ${shown(x, figure.x)}`)];
    figure.series.forEach((series, place) => {
      if (!state.on[place]) return;
      let best = nearest(series, x, figure.x.log);
      if (best < 0) return;
      if (series.kind === "step") while (best > 0 && series.x[best] > x) best--;
      if (series.kind === "points" || series.kind === "path") {
        let least = 40 ** 2; // CSS pixels, squared
        best = -1;
        series.x.forEach((at, i) => {
          if (!finite(series.y[i])) return;
          const away = top === null ? 0 : (plot.valToPos(series.y[i], "y") - top) ** 2;
          // Of a path the point at this x is meant, but where it turns back the nearer one.
          const far = (plot.valToPos(at, "x") - left) ** 2 + away * (series.kind === "path" ? 1e-3 : 1);
          if (far < least) [best, least] = [i, far];
        });
        if (best < 0) return;
      }
      let value = shown(series.y[best], figure.y);
      if (series.low && finite(series.low[best])) {
        value += ` (${range(shown(series.low[best], figure.y), shown(series.high[best], figure.y))})`;
      }
      const label = series.labels ? ` (${series.labels[best]})` : "";
      rows.push(line(series.name + label, series.colour, value));
    });
    return rows;
  };

  const tipOfLanes = (plot, figure, state, x, left, top) => {
    const rows = [element("div", "at", `${figure.x.label}: ${shown(x, figure.x)}`)];
    const lane = top === null ? -1 : Math.floor((top / plot.over.clientHeight) * figure.names.length);
    if (!(lane in figure.names)) return rows;
    rows.push(element("div", "", figure.names[lane]));
    const own = [...figure.lane.keys()].filter((i) => figure.lane[i] === lane && state.on[figure.of[i]]);
    const many = own.length > 6;  // then only what is under the cursor
    for (const i of own) {
      if (many && !(figure.start[i] <= x && x < figure.end[i])) continue;
      const one = figure.classes[figure.of[i]];
      rows.push(line(one.name, one.colour, shown(figure.end[i] - figure.start[i], figure.x)));
    }
    return rows;
  };

  // ---- one figure

  const groups = new Map();

  const draw = (place, figure) => {
    const lanes = figure.kind === "lanes";
    const parts = lanes ? figure.classes : figure.series;
    const state = { on: parts.map((part) => !part.hidden), plot: null };
    const tip = element("div", "tip");
    tip.hidden = true;
    tip.setAttribute("aria-live", "polite");
    const legend = element("div", "legend");
    const reset = element("button", "reset", "Show all");
    reset.type = "button";
    reset.hidden = true;

    const xs = lanes ? [...figure.start, ...figure.end] : figure.series.flatMap((series) => series.x);
    const whole = roomy(figure.x, over(figure.x, [...xs, ...figure.shades.flatMap((one) => [one.start, one.end])]));
    // Intervals count, but one of two runs may be a hundred times as wide as all values: it is cut at the edge.
    const heights = () => {
      const seen = figure.series.filter((series, i) => state.on[i]);
      const bounds = figure.bounds.filter((one) => one.axis === "y").map((one) => one.at);
      const [low, high] = over(figure.y, [...seen.flatMap((series) => series.y), ...bounds]);
      const [least, most] = figure.y.log ? [low / 3, high * 3] : [low - (high - low), high + (high - low)];
      const ends = seen.flatMap((series) => [...(series.low || []), ...(series.high || [])]).filter(finite);
      return roomy(figure.y, over(figure.y, [low, high, ...ends.map((end) => Math.min(most, Math.max(least, end)))]));
    };

    // Lines and bands are uPlot's; points, paths and lanes are painted over an empty series.
    const lined = lanes ? [] : figure.series.map((series, i) => [series, i]).filter(
      ([series]) => series.kind === "line" || series.kind === "step");
    const tables = [[whole, [null, null]]];
    const series = [{}, { show: true, points: { show: false } }];
    const bands = [], owner = [-1, -1];
    for (const [one, i] of lined) {
      const positive = (value) => (figure.y.log && value <= 0 ? null : value);
      const paths = one.kind === "step" ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear();
      const stroke = () => colour("c" + one.colour);
      const columns = [one.x, one.y.map(positive)];
      series.push({ paths, stroke, width: 1.75, dash: one.dashed ? [5, 4] : undefined, show: state.on[i],
        points: { show: one.x.length < 30, size: 5, fill: stroke } });
      owner.push(i);
      if (one.low) {
        for (const ends of [one.high, one.low]) {
          columns.push(ends.map(positive));
          series.push({ paths, width: 0, stroke: "transparent", points: { show: false }, show: state.on[i] });
          owner.push(i);
        }
        bands.push({ series: [series.length - 2, series.length - 1], fill: () => colour("c" + one.colour) + "2e" });
      }
      tables.push(columns);
    }
    const data = uPlot.join(tables);

    const axis = (of, more) => ({
      stroke: () => colour("soft"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false },
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 20,
      label: of.label + (of.unit ? ` (${of.unit})` : ""), values: ticks(of), ...(of.log ? { splits: logSplits, filter: (plot, splits) => splits } : {}), ...more });
    const said = (plot) => {
      const { left, top } = plot.cursor;
      if (!(left >= 0)) { tip.hidden = true; return; }
      const x = plot.posToVal(left, "x");
      const own = state.keyed || plot.over.matches(":hover");
      tip.replaceChildren(...(lanes ? tipOfLanes : tipOfSeries)(plot, figure, state, x, left, state.keyed || !own ? null : top));
      tip.hidden = !own;
      if (!own) return;
      const box = plot.over, width = tip.offsetWidth;
      const right = left + 14 + width > box.clientWidth;
      tip.style.left = `${Math.max(0, box.offsetLeft + (right ? left - width - 14 : left + 14))}px`;
      tip.style.top = `${box.offsetTop + legend.offsetHeight + 8}px`;
    };

    const width = () => Math.max(200, place.clientWidth);
    const options = {
      width: width(), height: figure.height, series, bands, legend: { show: false }, padding: [10, 12, 0, 0],
      scales: {
        x: { time: false, distr: figure.x.log ? 3 : 1, range: (plot, low, high) => [low, high] },
        y: lanes ? { range: [0, 1] } : { distr: figure.y.log ? 3 : 1, range: heights },
      },
      axes: [
        axis(figure.x, { size: figure.group ? 28 : 34, space: 64, ...(figure.group ? { label: undefined } : {}) }),
        lanes ? { show: true, size: 62, values: () => [], ticks: { show: false }, grid: { show: false },
          stroke: () => colour("soft"), label: `${figure.names.length} lanes`, labelSize: 20, labelFont: "12px system-ui, sans-serif" }
          : axis(figure.y, { size: 62, space: 36 }),
      ],
      cursor: {
        y: false, points: { show: false }, drag: { x: true, y: false },
        ...(figure.group ? { sync: { key: figure.group, setSeries: false, scales: ["x", null] } } : {}),
      },
      hooks: {
        drawClear: [(plot) => paintShades(plot, figure)],
        draw: [(plot) => {
          if (lanes) paintLanes(plot, figure, state);
          else { paintMarks(plot, figure, state); paintBounds(plot, figure); }
        }],
        setCursor: [said],
        setScale: [(plot, key) => {
          if (key === "x") reset.hidden = plot.scales.x.min === whole[0] && plot.scales.x.max === whole[1];
        }],
      },
    };

    if (parts.length > 1) parts.forEach((part, i) => {
      const button = element("button");
      button.type = "button";
      button.append(element("i", "k" + part.colour), element("span", "", part.name));
      button.setAttribute("aria-pressed", String(state.on[i]));
      button.addEventListener("click", () => {
        state.on[i] = !state.on[i];
        button.setAttribute("aria-pressed", String(state.on[i]));
        owner.forEach((of, s) => of === i && state.plot.setSeries(s, { show: state.on[i] }));
        state.plot.redraw(true, true);
      });
      legend.append(button);
    });
    legend.append(reset);
    place.append(legend);
    const plot = state.plot = new uPlot(options, data, place);
    place.append(tip);

    const together = figure.group ? groups.get(figure.group) || [] : [];
    together.push([plot, whole]);
    if (figure.group) groups.set(figure.group, together);
    const zoom = (low, high) => together.forEach(([one]) => one.setScale("x", { min: low, max: high }));
    reset.addEventListener("click", () => together.forEach(([one, all]) => one.setScale("x", { min: all[0], max: all[1] })));

    // Keys: arrows move the cursor, + and - zoom around it, 0 or Escape shows all.
    place.tabIndex = 0;
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", "Chart; left and right move the cursor, plus and minus zoom, 0 shows all");
    place.addEventListener("keydown", (event) => {
      if (event.target !== place || event.ctrlKey || event.metaKey || event.altKey) return;
      const wide = plot.over.clientWidth;
      const left = plot.cursor.left >= 0 ? plot.cursor.left : wide / 2;
      const step = event.shiftKey ? wide / 10 : Math.max(1, wide / 100);
      const moves = { ArrowLeft: left - step, ArrowRight: left + step, Home: 0, End: wide };
      if (event.key in moves) {
        state.keyed = true;
        plot.setCursor({ left: Math.min(wide, Math.max(0, moves[event.key])), top: plot.over.clientHeight / 2 });
      } else if ("+=-".includes(event.key)) {
        const factor = event.key === "-" ? 2 : 0.5;
        const ends = [left - left * factor, left + (wide - left) * factor].map((at) => plot.posToVal(at, "x"));
        zoom(Math.max(whole[0], ends[0]), Math.min(whole[1], ends[1]));
      } else if (event.key === "0" || event.key === "Escape") {
        zoom(...whole);
      } else return;
      event.preventDefault();
    });
    place.addEventListener("pointermove", () => { state.keyed = false; });
    place.addEventListener("blur", () => { state.keyed = false; tip.hidden = true; });
    new ResizeObserver(() => {
      if (plot.width !== width()) plot.setSize({ width: width(), height: figure.height });
    }).observe(place);
    return plot;
  };

  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll(".plot")].map((place) => draw(place, figures[Number(place.dataset.figure)]));
  const again = () => plots.forEach((plot) => plot.redraw(false, true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  // Paper is light.
  const printed = (on) => () => { document.documentElement.classList.toggle("print", on); again(); };
  addEventListener("beforeprint", printed(true));
  addEventListener("afterprint", printed(false));
})();
