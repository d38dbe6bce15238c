/* Forest plots: differences with their intervals, one row each, zero in the middle of the matter. */
(() => {
  "use strict";
  const C = window.calattn;
  const { s, missing } = C;

  const ROW = 22,
    HEAD = 24;
  const COLOURS = { better: "green", worse: "orange", noise: "dim", differs: "ink" };

  /** What a difference means: noise, better, worse, or that it differs. */
  function effectOf(row) {
    if (!row.significant) return "noise";
    return row.improved === true ? "better" : row.improved === false ? "worse" : "differs";
  }

  const effectText = (row) =>
    effectOf(row) === "noise" ? (row.too_few ? "cannot tell" : "within noise") : effectOf(row);

  function rangeOf(rows, factor) {
    const ends = rows.flatMap(({ row }) => [row.low, row.high, row.difference]).filter((value) => !missing(value));
    const low = factor * Math.min(0, ...ends),
      high = factor * Math.max(0, ...ends);
    const pad = (high - low || 1) * 0.06;
    return [low - pad, high + pad];
  }

  /** Of a difference. */
  const unitOf = (metric) => (metric.unit === "%" ? "points" : metric.unit);

  /** Shortened in the middle, where names of files are most alike. */
  const fitted = (text, room) =>
    text.length <= room ? text : `${text.slice(0, Math.ceil(room / 2) - 1)}…${text.slice(-Math.floor(room / 2))}`;

  function drawGroup(svg, width, top, group) {
    const { rows, title, factor } = group;
    const narrow = width < 520,
      left = narrow ? 112 : 190,
      right = narrow ? 12 : 104;
    const height = HEAD + ROW * rows.length + 42;
    const x = rangeOf(rows, factor);
    const plot = new C.Plot(svg, { width, top, height, left, right, above: HEAD, below: 42, x, y: [rows.length, 0] });
    plot.axes({ xTicks: C.niceTicks(x[0], x[1], narrow ? 3 : 6), xLabel: narrow ? group.unit : group.axis });
    plot.rule(0, "zero", null);
    svg.append(s("text", { class: "plot-title", x: left, y: top + 14 }, title));
    rows.forEach(({ name, row }, place) => {
      const y = plot.py(place + 0.5),
        effect = effectOf(row),
        at = plot.px(factor * row.difference);
      const label = s("text", { class: "tick forest-name", x: left - 8, y: y + 4, "text-anchor": "end" });
      label.append(fitted(name, narrow ? 16 : 27), s("title", {}, name));
      plot.labels.append(label);
      if (!missing(row.low) && !missing(row.high)) {
        const [from, to] = [row.low, row.high].map((value) => plot.px(factor * value));
        const d = `M${from} ${y}H${to}M${from} ${y - 4}v8M${to} ${y - 4}v8`;
        plot.front.append(s("path", { class: `line forest ${COLOURS[effect]}`, d }));
      }
      if (!missing(row.difference))
        plot.front.append(s("circle", { class: `forest-dot ${COLOURS[effect]} ${effect}`, cx: at, cy: y, r: 4.5 }));
      if (!narrow)
        plot.labels.append(
          s("text", { class: `tick forest-word ${COLOURS[effect]}`, x: width - right + 8, y: y + 4 }, effectText(row)),
        );
    });
    return { height, plot };
  }

  /** Groups are {title, axis, unit, factor, rows: [{name, row, text}]}, drawn below each other. */
  function forestChart(name, groups, label) {
    const draw = (svg, width) => {
      let top = 0;
      const items = [];
      for (const group of groups) {
        const { height, plot } = drawGroup(svg, width, top, group);
        for (const each of group.rows)
          items.push({ x: plot.px(group.factor * (each.row.difference ?? 0)), text: each.text });
        top += height;
      }
      return { height: top, label, items, top: 0, bottom: top };
    };
    return C.chart({ name, hint: "", most: 860, draw });
  }

  Object.assign(C, { effectOf, effectText, forestChart, fitted, unitOf });
})();
