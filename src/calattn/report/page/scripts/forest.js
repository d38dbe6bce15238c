/* Forest plots: numbers with their intervals, one row each, beside the value that they are held against. */
(() => {
  "use strict";
  const C = window.calattn;
  const { s, missing } = C;

  const ROW = 22,
    HEAD = 24;
  const COLOURS = { better: "green", worse: "orange", noise: "dim", plain: "blue" };

  /** What a difference means: noise, better or worse. */
  const effectOf = (row) => (row.significant ? (row.improved ? "better" : "worse") : "noise");

  const effectText = (row) =>
    effectOf(row) === "noise" ? (row.too_few ? "cannot tell" : "within noise") : effectOf(row);

  /** The row of a difference. */
  const differenceRow = (name, row, text) => ({
    name,
    text,
    value: row.difference,
    low: row.low,
    high: row.high,
    kind: effectOf(row),
    word: effectText(row),
  });

  function rangeOf({ rows, factor, at = 0 }) {
    const ends = rows.flatMap(({ low, high, value, expected }) => [low, high, value, expected]);
    const known = [at, ...ends].filter((value) => !missing(value)).map((value) => factor * value);
    const low = Math.min(...known),
      high = Math.max(...known),
      pad = (high - low || 1) * 0.06;
    return [low - pad, high + pad];
  }

  /** Of a difference. */
  const unitOf = (metric) => (metric.unit === "%" ? "points" : metric.unit);

  /** Shortened in the middle, where names of files are most alike. */
  const fitted = (text, room) =>
    text.length <= room ? text : `${text.slice(0, Math.ceil(room / 2) - 1)}…${text.slice(-Math.floor(room / 2))}`;

  function drawRow(plot, row, place, { factor, width, narrow, right }) {
    const y = plot.py(place + 0.5),
      colour = COLOURS[row.kind],
      at = (value) => plot.px(factor * value);
    const label = s("text", { class: "tick forest-name", x: plot.box.left - 8, y: y + 4, "text-anchor": "end" });
    label.append(fitted(row.name, narrow ? 16 : 27), s("title", {}, row.name));
    plot.labels.append(label);
    if (!missing(row.low) && !missing(row.high)) {
      const [from, to] = [at(row.low), at(row.high)];
      const d = `M${from} ${y}H${to}M${from} ${y - 4}v8M${to} ${y - 4}v8`;
      plot.front.append(s("path", { class: `line forest ${colour}`, d }));
    }
    if (!missing(row.expected))
      plot.front.append(s("path", { class: "line expected", d: `M${at(row.expected)} ${y - 7}v14` }));
    if (!missing(row.value))
      plot.front.append(s("circle", { class: `forest-dot ${colour} ${row.kind}`, cx: at(row.value), cy: y, r: 4.5 }));
    if (!narrow)
      plot.labels.append(s("text", { class: `tick forest-word ${colour}`, x: width - right + 8, y: y + 4 }, row.word));
  }

  function drawGroup(svg, width, top, group) {
    const { rows, title, at = 0 } = group;
    const narrow = width < 520,
      left = narrow ? 112 : 190,
      right = narrow ? 12 : 104;
    const height = HEAD + ROW * rows.length + 42;
    const x = rangeOf(group);
    const plot = new C.Plot(svg, { width, top, height, left, right, above: HEAD, below: 42, x, y: [rows.length, 0] });
    plot.axes({ xTicks: C.niceTicks(x[0], x[1], narrow ? 3 : 6), xLabel: narrow ? group.unit : group.axis });
    if (at !== null) plot.rule(group.factor * at, at ? "reference" : "zero", null);
    plot.title(title, narrow ? 0 : left);
    rows.forEach((row, place) => drawRow(plot, row, place, { factor: group.factor, width, narrow, right }));
    return { height, plot };
  }

  /** Groups are {title, axis, unit, factor, at, rows: [{name, value, low, high, expected, kind, word, text}]}, drawn below each
      other. `at` is what the rows are held against (0; null: nothing), `expected` what a single one is. */
  function forestChart(name, groups, label) {
    const draw = (svg, width) => {
      let top = 0;
      const items = [];
      for (const group of groups) {
        const { height, plot } = drawGroup(svg, width, top, group);
        for (const row of group.rows) items.push({ x: plot.px(group.factor * (row.value ?? group.at ?? 0)), text: row.text });
        top += height;
      }
      return { height: top, label, items };
    };
    return C.chart({ name, hint: "", most: 860, draw });
  }

  Object.assign(C, { differenceRow, effectOf, effectText, forestChart, fitted, unitOf });
})();
