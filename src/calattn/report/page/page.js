/* The page: what each subject's panels say, and the one control bar that drives them.
   A panel is {element, update()?}; update redraws what depends on temperature, bins or threshold. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, whole, fixed, missing, temperatureText } = C;

  const page = C.readDocument();
  C.themeSwitch(document.getElementById("theme"));
  C.printing(document.getElementById("print"));
  if (!page) return;

  const subjects = page.subjects;
  const several = subjects.length > 1;
  const profiles = new Map(subjects.map((subject) => [subject.id, new C.Profile(subject.temperature)]));
  const BINS = [5, 10, 15, 20, 30];
  const state = {
    at: new Map(subjects.map((subject) => [subject.id, profiles.get(subject.id).start])), // index into each one's grid
    own: null, // "NLL" while each subject stands at its own T* by NLL
    bins: 15,
    binning: "width",
    threshold: 0.9,
  };

  const slug = (text) =>
    `method-${String(text)
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")}`;
  const defined = new Set(page.methods.map(([title]) => slug(title)));

  /** A metric's title, linked to its definition where the methods have one. */
  function titleLink(metric) {
    const target = [metric.title, metric.name].map(slug).find((name) => defined.has(name));
    return target ? h("a", { href: `#${target}` }, metric.title) : metric.title;
  }

  const levelText = `${C.short(100 * page.level)} %`;
  const binsText = () => `${state.bins} equal-${state.binning === "count" ? "count" : "width"} bins`;

  function panel(name, title, ...children) {
    const id = C.freshId(name);
    return h(
      "section",
      { class: `panel panel-${name}`, "data-panel": name, "aria-labelledby": id },
      h("h3", { id }, title),
      children,
    );
  }

  /** Keeps the place of a panel that another subject has, so that the columns stay level. */
  function absent(name, title) {
    const element = panel(name, title, h("p", { class: "dim" }, "Not recorded for this one."));
    element.classList.add("absent");
    return { element };
  }

  const note = (...text) => h("p", { class: "note-text" }, text);

  /** The temperature, confidence, accuracy, ECE and NLL of a subject as the controls stand. */
  function live(subject) {
    const profile = profiles.get(subject.id),
      index = state.at.get(subject.id);
    const { said, right } = profile.above(index);
    const ece = profile.ece(index, state.bins, state.binning);
    return {
      profile,
      index,
      temperature: profile.grid[index],
      moved: index !== profile.start,
      said,
      right,
      ece,
      nll: profile.nll[index],
    };
  }

  /* ---- verdict and cards ---- */

  function summaryPanel(subject) {
    const facts = `${whole(subject.samples)} samples · ${whole(subject.classes)} classes`;
    const { kind, headline, detail } = subject.verdict;
    const cards = subject.cards
      .map((name) => subject.metrics.find((metric) => metric.name === name))
      .filter(Boolean)
      .map((metric) => card(subject, metric));
    const element = h(
      "div",
      { class: "summary", "data-panel": "summary" },
      several ? [h("h2", {}, subject.title), h("p", { class: "meta" }, facts)] : null,
      h(
        "div",
        { class: `verdict verdict-${kind}`, "data-verdict": kind },
        h("p", { class: "headline" }, headline),
        h("p", { class: "detail" }, detail),
      ),
      h(
        "div",
        { class: "cards" },
        cards.map((one) => one.element),
      ),
      subject.shown ? note(subject.shown) : null,
    );
    return { element, update: () => cards.forEach((one) => one.update()) };
  }

  function card(subject, metric) {
    const now = h("p", { class: "card-now" });
    const range = C.intervalText(metric, metric.low, metric.high);
    const value = C.metricText(metric, metric.value);
    const element = h(
      "div",
      { class: "card", "data-card": metric.name },
      h("p", { class: "card-title" }, titleLink(metric)),
      h("p", { class: "card-value" }, value),
      h("p", { class: "card-range", title: range ? `${levelText} interval` : null }, range || " "),
      now,
    );
    return { element, update: () => now.replaceChildren(...cardNow(live(subject), metric)) };
  }

  function cardNow(current, metric) {
    const at = `at T = ${temperatureText(current.temperature)}`;
    const rebinned = state.bins !== 15 || state.binning !== "width";
    if (metric.name === "ece" && (current.moved || rebinned)) {
      return [h("strong", {}, percent(current.ece)), ` ${at}${rebinned ? `, ${binsText()}` : ""}`];
    }
    if (!current.moved) return [" "];
    if (metric.name === "nll") return [h("strong", {}, fixed(current.nll, metric.places)), ` ${at}`];
    return [metric.name === "accuracy" ? "the same at every T" : "shown at T = 1"];
  }

  /* ---- reliability ---- */

  const ENOUGH = 20; // samples that a point of the smooth curve must rest on: a standard error of 11 points at most

  function liveStrip(subject) {
    const parts = [
      ["temperature", "T"],
      ["ece", "ECE"],
      ["nll", "NLL"],
      ["confidence", "says"],
      ["accuracy", "right"],
    ];
    const values = new Map(parts.map(([name]) => [name, h("dd", { "data-live": name })]));
    const element = h(
      "dl",
      { class: "live" },
      parts.map(([name, title]) => h("div", {}, h("dt", {}, title), values.get(name))),
    );
    function write(name, value, text) {
      values.get(name).textContent = text;
      values.get(name).setAttribute("data-value", missing(value) ? "" : String(value));
    }
    function update() {
      const { temperature, ece, nll, said, right } = live(subject);
      write("temperature", temperature, temperatureText(temperature));
      write("ece", ece, percent(ece));
      write("nll", nll, missing(nll) ? "∞" : fixed(nll, 4));
      write("confidence", said, percent(said));
      write("accuracy", right, percent(right));
    }
    return { element, update };
  }

  function binText(bin, place, level) {
    const [low, high] = C.consistency(bin.count, bin.said, level);
    const name =
      bin.low === null ? `Bin ${place + 1} of ${state.bins}` : `Confidence ${fixed(bin.low, 2)}–${fixed(bin.high, 2)}`;
    const chance = `chance alone: ${percent(low, 1)} to ${percent(high, 1)}`;
    const means = `says ${percent(bin.said, 1)}, right ${percent(bin.right, 1)}`;
    return `${name}: ${whole(bin.count)} samples, ${means} (${chance}).`;
  }

  function drawWidthBins(plot, svg, bins, ghosts) {
    const paint = C.hatch(svg),
      gap = state.bins > 20 ? 1 : 2;
    for (const bin of bins) if (bin.count) plot.bar([bin.low, bin.high], [0, bin.right], "fill-blue", { gap });
    for (const bin of bins.filter((one) => one.count)) {
      // Stripes on blue are hard to see.
      if (bin.right > bin.said) plot.bar([bin.low, bin.high], [bin.right, bin.said], "gap-veil", { gap });
      plot.bar([bin.low, bin.high], [bin.right, bin.said], "gap-box", { gap, paint });
    }
    for (const bin of ghosts) if (bin.count) plot.segment([bin.low, bin.right], [bin.high, bin.right], "ghost");
  }

  function drawCountBins(plot, bins, ghosts) {
    for (const bin of ghosts) if (bin.count) plot.dot(bin.said, bin.right, "dot-ghost", 4);
    for (const bin of bins) if (bin.count) plot.segment([bin.said, bin.right], [bin.said, bin.said], "gap-line");
    for (const bin of bins) if (bin.count) plot.dot(bin.said, bin.right, "dot-blue", 4.5);
  }

  function drawConsistency(plot, bin) {
    const [low, high] = C.consistency(bin.count, bin.said, page.level);
    const middle = bin.low === null ? bin.said : (bin.low + bin.high) / 2;
    const x = plot.px(middle),
      y0 = plot.py(low),
      y1 = plot.py(high);
    plot.inside.append(C.s("path", { class: "line chance", d: `M${x} ${y0}V${y1}M${x - 3} ${y0}h6M${x - 3} ${y1}h6` }));
    return plot.px(middle);
  }

  function drawReliability(subject, svg, width) {
    const { profile, index, moved, temperature, said, right, ece } = live(subject);
    const side = Math.min(width, 460),
      lower = 118;
    const plot = new C.Plot(svg, { width, height: side - 14, above: 8, below: 12, left: 46 });
    const quarters = [0, 0.25, 0.5, 0.75, 1],
      texts = (tick) => `${100 * tick}`;
    plot.axes({ xTicks: quarters, xText: () => "", yTicks: quarters, yText: texts, yLabel: "right, %" });
    const bins = profile.bins(index, state.bins, state.binning);
    const ghosts = moved ? profile.bins(profile.start, state.bins, state.binning) : [];
    if (state.binning === "width") drawWidthBins(plot, svg, bins, ghosts);
    plot.segment([0, 0], [1, 1], "diagonal");
    const curve = C.smoothCurve(profile.fine(index)),
      enough = Math.min(ENOUGH, Math.max(...curve.samples));
    const heights = curve.accuracy.map((y, k) => (curve.samples[k] < enough ? null : y));
    plot.line(curve.confidence, heights, "smooth-rim").line(curve.confidence, heights, "smooth");
    const filled = bins.filter((bin) => bin.count > 0);
    const items = filled.map((bin) => ({
      x: drawConsistency(plot, bin),
      text: binText(bin, bins.indexOf(bin), page.level),
    }));
    if (state.binning === "count") drawCountBins(plot, bins, ghosts);
    drawHistogram(svg, { width, top: side - 14, height: lower }, profile.widthBins(index, state.bins), said, right);
    const worst = filled.reduce(
      (a, b) => (Math.abs(b.said - b.right) * b.count > Math.abs(a.said - a.right) * a.count ? b : a),
      filled[0],
    );
    const label =
      `Reliability diagram at temperature ${temperatureText(temperature)} with ${binsText()}: on average it says ` +
      `${percent(said, 1)} and is right ${percent(right, 1)}; ECE ${percent(ece)}. The bin that adds most says ` +
      `${percent(worst.said, 1)}, is right ${percent(worst.right, 1)}, ` +
      `on ${whole(worst.count)} samples. Beneath it, the histogram of the confidences.`;
    return { height: side - 14 + lower, label, items, top: plot.box.top, bottom: side - 14 + lower - 36 };
  }

  function drawHistogram(svg, { width, top, height }, bins, said, right) {
    const all = bins.reduce((sum, bin) => sum + bin.count, 0);
    const most = Math.max(...bins.map((bin) => bin.count)) / all;
    const plot = new C.Plot(svg, { width, top, height, above: 8, left: 46, y: [0, most * 1.08] });
    const quarters = [0, 0.25, 0.5, 0.75, 1];
    const ticks = C.niceTicks(0, most, 2);
    plot.axes({
      xTicks: quarters,
      xText: (tick) => `${100 * tick}`,
      yTicks: ticks,
      yText: (t) => C.short(100 * t),
      xLabel: "says (confidence), %",
      yLabel: "samples, %",
    });
    for (const bin of bins)
      plot.bar([bin.low, bin.high], [0, bin.count / all], "fill-grey", { gap: state.bins > 20 ? 1 : 2 });
    plot.rule(said, "mean-said", null);
    plot.rule(right, "mean-right", null);
    const crowd = (from, to) =>
      Math.max(...bins.filter((bin) => bin.high > from && bin.low < to).map((bin) => bin.count)) / all / most;
    const crossed = (from, to) => [said, right].filter((value) => value > from && value < to).length;
    const left = crowd(0, 0.35) + crossed(0, 0.35) <= crowd(0.65, 1) + crossed(0.65, 1); // where the words hide least
    const place = { x: plot.px(left ? 0.02 : 0.98), "text-anchor": left ? "start" : "end" };
    plot.labels.append(
      C.s("text", { ...place, class: "note mean-said", y: plot.box.top + 12 }, `┆ says ${percent(said, 1)}`),
    );
    plot.labels.append(
      C.s("text", { ...place, class: "note mean-right", y: plot.box.top + 27 }, `│ right ${percent(right, 1)}`),
    );
  }

  function reliabilityPanel(subject) {
    const strip = liveStrip(subject);
    const hint = "Point at any chart for its numbers, or focus it and use the arrow keys.";
    const diagram = C.chart({
      name: "reliability",
      hint,
      most: 480,
      draw: (svg, width) => drawReliability(subject, svg, width),
    });
    const numbers = C.numbersTable("Show the numbers", [
      "confidence",
      "samples",
      "says",
      "right",
      "gap",
      "chance allows",
    ]);
    const key = h("div");
    function update() {
      strip.update();
      diagram.redraw();
      const { moved, profile, index } = live(subject);
      const dots = state.binning === "count";
      const entries = [
        [dots ? "key-dot" : "key-bar", "right, per bin"],
        [dots ? "key-orange" : "key-gap", "gap to what it says"],
        ["key-chance", `chance alone, if calibrated (${levelText})`],
        ["key-smooth", "smooth curve"],
      ];
      key.replaceChildren(C.legend(moved ? [...entries, [dots ? "key-circle" : "key-ghost", "at T = 1"]] : entries));
      numbers.write(profile.bins(index, state.bins, state.binning).map(binRow));
    }
    const element = panel(
      "reliability",
      "Does it mean what it says?",
      strip.element,
      diagram.element,
      key,
      numbers.element,
    );
    return { element, update };
  }

  function binRow(bin, place) {
    const name = bin.low === null ? `bin ${place + 1}` : `${fixed(bin.low, 3)}–${fixed(bin.high, 3)}`;
    if (!bin.count) return [name, "0", C.DASH, C.DASH, C.DASH, C.DASH];
    const [low, high] = C.consistency(bin.count, bin.said, page.level);
    const range = `${fixed(100 * low, 1)} – ${fixed(100 * high, 1)}`;
    return [
      name,
      whole(bin.count),
      percent(bin.said),
      percent(bin.right),
      fixed(100 * (bin.said - bin.right), 2),
      range,
    ];
  }

  /* ---- temperature ---- */

  const T_TICKS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];

  /** The range worth seeing: NLL at T = 0.1 can be a hundred times the one at T*. */
  function usefulRange(values, start) {
    const known = values.filter((value) => !missing(value));
    if (!known.length) return [0, 1];
    const low = Math.min(...known),
      high = Math.max(...known);
    const first = missing(values[start]) ? low : values[start];
    const top = Math.min(high, low + Math.max(3 * (first - low), 0.25 * (high - low)));
    const pad = (top - low) * 0.08 || 0.01;
    return [Math.max(0, low - pad), top + pad];
  }

  function drawCurve(subject, svg, width, { values, title, text, places, by, last }) {
    const { profile, index, temperature } = live(subject);
    const height = (last ? 206 : 178) + (several ? 0 : 64);
    const y = usefulRange(values, profile.start);
    const ends = [profile.grid[0], profile.grid[profile.grid.length - 1]];
    const plot = new C.Plot(svg, { width, height, x: ends, y, log: true, above: 24, below: last ? 40 : 20, left: 46 });
    const ticks = C.niceTicks(y[0], y[1], 4);
    plot.axes({
      xTicks: T_TICKS.filter((tick) => tick >= ends[0] && tick <= ends[1]),
      yTicks: ticks,
      yText: text,
      xLabel: last ? "temperature T" : null,
    });
    svg.append(C.s("text", { class: "plot-title", x: 46, y: 13 }, title));
    plot.rule(1, "faint", null);
    plot.line(profile.grid, values, "blue");
    const mine = profile.best.filter((best) => best.by === by);
    for (const best of mine)
      plot.rule(best.value, "star", `T* ${temperatureText(best.value)}`, { left: best.value < temperature });
    plot.rule(temperature, "current", null);
    if (!missing(values[index]) && values[index] <= y[1]) plot.dot(temperature, values[index], "dot-current", 4.5);
    const items = profile.grid.map((one, k) => ({
      x: plot.px(one),
      text: `T = ${temperatureText(one)}: ${by} ${missing(values[k]) ? "∞" : places(values[k])}.`,
    }));
    const stars = mine.map((best) => ` It is lowest near T* = ${temperatureText(best.value)}.`).join("");
    const said = (k) => (missing(values[k]) ? "infinite" : places(values[k]));
    const here = `${said(index)} at T = ${temperatureText(temperature)}`;
    const label = `${title}: ${said(profile.start)} at T = 1, ${here}.${stars}`;
    return { height, label, items, top: plot.box.top, bottom: plot.box.bottom };
  }

  function temperaturePanel(subject) {
    const profile = profiles.get(subject.id);
    const memo = new Map();
    const eces = () => {
      const key = `${state.binning} ${state.bins}`;
      if (!memo.has(key))
        memo.set(
          key,
          profile.grid.map((_, index) => profile.ece(index, state.bins, state.binning)),
        );
      return memo.get(key);
    };
    const hint = "";
    const eceChart = C.chart({
      name: "ece-temperature",
      hint,
      draw: (svg, width) =>
        drawCurve(subject, svg, width, {
          values: eces(),
          title: `ECE, % (${binsText()})`,
          text: (t) => C.short(100 * t),
          places: percent,
          by: "ECE",
          last: false,
        }),
    });
    const nllChart = C.chart({
      name: "nll-temperature",
      hint,
      draw: (svg, width) =>
        drawCurve(subject, svg, width, {
          values: profile.nll,
          title: "NLL, nats",
          text: C.short,
          places: (v) => fixed(v, 4),
          by: "NLL",
          last: true,
        }),
    });
    const buttons = several
      ? h(
          "p",
          { class: "buttons no-print" },
          profile.best.map((best) =>
            h("button", { type: "button", click: () => setTemperature(best.value) }, `all at this T* (${best.by})`),
          ),
        )
      : null;
    const element = panel(
      "temperature",
      "What would one temperature change?",
      eceChart.element,
      nllChart.element,
      buttons,
      profile.best.length
        ? profile.best.map(starNote)
        : note("No T* is marked: no temperature of the slider is best for these predictions."),
    );
    return { element, update: () => [eceChart, nllChart].forEach((one) => one.redraw()) };
  }

  const starName = (best) => `T* (${best.by}, ${best.fitted_on})`;
  const starButton = (best, click) => h("button", { type: "button", "data-star": best.by, click }, starName(best));

  function starNote(best) {
    const value = `T* = ${temperatureText(best.value)} has the lowest ${best.by} on ${best.fitted_on}.`;
    if (best.fitted_on !== "these predictions") return note(`${value} It was chosen without the samples shown here.`);
    return note(
      h("strong", {}, value),
      " It was chosen on the very data it is shown on, so what it promises is too good.",
    );
  }

  /* ---- acting above a confidence ---- */

  function drawActing(subject, svg, width) {
    const { profile, index } = live(subject);
    const height = 230,
      thresholds = Array.from({ length: 100 }, (_, k) => k / 100);
    const found = thresholds.map((threshold) => profile.above(index, threshold));
    const plot = new C.Plot(svg, { width, height, left: 46 });
    const quarters = [0, 0.25, 0.5, 0.75, 1];
    plot.axes({
      xTicks: quarters,
      yTicks: quarters,
      yText: (t) => `${100 * t}`,
      xLabel: "act only above this confidence",
      yLabel: "%",
    });
    plot.line(
      thresholds,
      found.map((one) => one.share),
      "green",
    );
    plot.line(
      thresholds,
      found.map((one) => one.right),
      "blue",
    );
    plot.rule(state.threshold, "current", null);
    const now = profile.above(index, state.threshold);
    plot.dot(state.threshold, now.share, "dot-green", 4.5);
    if (now.count) plot.dot(state.threshold, now.right, "dot-blue", 4.5);
    const items = thresholds.map((threshold, k) => ({
      x: plot.px(threshold),
      text: actingSentence(threshold, found[k]),
    }));
    return {
      height,
      label: `Coverage and accuracy over thresholds. ${actingSentence(state.threshold, now)}`,
      items,
      top: plot.box.top,
      bottom: plot.box.bottom,
    };
  }

  function actingSentence(threshold, { count, share, right }) {
    const start = `If you act only above ${fixed(threshold, 2)}, you act on`;
    return count
      ? `${start} ${percent(share, 1)} of the samples and ${percent(right, 1)} of those are right.`
      : `${start} none of the samples.`;
  }

  function actingPanel(subject) {
    const sentence = h("p", { class: "sentence", "data-live": "acting", "aria-live": "polite" });
    const input = h("input", {
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      "data-control": "threshold",
      input: () => setThreshold(Number(input.value)),
    });
    const shown = h("output", {}, "");
    const diagram = C.chart({ name: "acting", hint: "", draw: (svg, width) => drawActing(subject, svg, width) });
    function update() {
      const { profile, index } = live(subject),
        found = profile.above(index, state.threshold);
      input.value = String(state.threshold);
      input.setAttribute("aria-valuetext", `confidence ${fixed(state.threshold, 2)}`);
      shown.textContent = fixed(state.threshold, 2);
      const text = actingSentence(state.threshold, found);
      if (sentence.textContent !== text) sentence.textContent = text;
      sentence.setAttribute("data-coverage", String(found.share));
      sentence.setAttribute("data-accuracy", missing(found.right) ? "" : String(found.right));
      diagram.redraw();
    }
    const key = C.legend([
      ["key-green", "samples acted on"],
      ["key-blue", "of those, right"],
    ]);
    const slider = h("label", { class: "slider no-print" }, h("span", {}, "Threshold"), input, shown);
    const extra = page.thresholds_note ? note(page.thresholds_note) : null;
    return {
      element: panel("acting", "If you act only when it is sure", sentence, slider, diagram.element, key, extra),
      update,
    };
  }

  function drawRisk(subject, svg, width) {
    const { coverage, risk, optimal, aurc } = subject.risk_coverage;
    const most = Math.max(...risk.filter((value) => !missing(value)), 0.01),
      height = 230;
    const plot = new C.Plot(svg, { width, height, left: 46, y: [0, most * 1.08] });
    plot.axes({
      xTicks: [0, 0.25, 0.5, 0.75, 1],
      xText: (t) => `${100 * t}`,
      yTicks: C.niceTicks(0, most, 4),
      yText: (t) => C.short(100 * t),
      xLabel: "answered, most confident first, %",
      yLabel: "of those wrong, %",
    });
    if (optimal) plot.line(coverage, optimal, "optimal");
    plot.line(coverage, risk, "orange");
    if (coverage.length === 1) plot.dot(coverage[0], risk[0], "dot-orange"); // all confidences tie
    const items = coverage.map((share, k) => ({
      x: plot.px(share),
      text:
        `Answering the surest ${percent(share, 1)}: ${percent(risk[k])} wrong` +
        (optimal ? `; a perfect order would have ${percent(optimal[k])}.` : "."),
    }));
    const half = coverage.findIndex((share) => share >= 0.5);
    const label =
      `Risk against coverage: ${percent(risk[half])} wrong on the surest half, ` +
      `${percent(risk[risk.length - 1])} on all; area under the curve (AURC) ${percent(aurc)}.`;
    return { height, label, items, top: plot.box.top, bottom: plot.box.bottom };
  }

  function riskPanel(subject) {
    const diagram = C.chart({ name: "risk-coverage", hint: "", draw: (svg, width) => drawRisk(subject, svg, width) });
    const key = C.legend([
      ["key-orange", `this order (AURC ${percent(subject.risk_coverage.aurc)})`],
      ["key-optimal", "a perfect order"],
    ]);
    return {
      element: panel(
        "risk",
        "Does its doubt find its errors?",
        note(
          "Error rate when only the most confident are answered, at T = 1. One temperature hardly changes the order.",
        ),
        diagram.element,
        key,
      ),
    };
  }

  /* ---- tables ---- */

  function direction(metric) {
    const words = metric.better === "high" ? "higher is better" : "lower is better";
    return h(
      "span",
      { class: "direction", title: words },
      h("span", { "aria-hidden": "true" }, metric.better === "high" ? "↑" : "↓"),
      h("span", { class: "visually-hidden" }, words),
    );
  }

  function metricsPanel(subject) {
    const rows = subject.metrics.map((metric) =>
      h(
        "tr",
        { "data-metric": metric.name },
        h("th", { scope: "row" }, titleLink(metric), " ", direction(metric)),
        h("td", { class: "numeric" }, C.metricText(metric, metric.value)),
        h("td", { class: "numeric dim" }, C.intervalText(metric, metric.low, metric.high)),
      ),
    );
    const heads = ["Metric", "Value", `${levelText} interval`].map((text, k) =>
      h("th", { scope: "col", class: k > 0 ? "numeric" : null }, text),
    );
    const table = h(
      "table",
      { class: "data", "data-table": "metrics" },
      h("thead", {}, h("tr", {}, heads)),
      h("tbody", {}, rows),
    );
    const label = "Every number, at T = 1";
    const arrows = note("↑ higher is better, ↓ lower is better.");
    return {
      element: panel(
        "metrics",
        label,
        h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, table),
        arrows,
      ),
    };
  }

  function gapCell(row) {
    if (missing(row.gap)) return C.DASH;
    const bar = h("span", { class: `gap-bar ${row.gap > 0 ? "over" : "under"}`, "aria-hidden": "true" });
    bar.style.width = `${Math.min(100, 200 * Math.abs(row.gap)).toFixed(1)}%`;
    return h("span", { class: "gap-cell" }, h("span", { class: "gap-track" }, bar), fixed(100 * row.gap, 1));
  }

  function classColumns() {
    const share = (key, title, help) => ({
      key,
      title,
      help,
      numeric: true,
      value: (row) => row[key],
      text: (row) => (missing(row[key]) ? C.DASH : fixed(100 * row[key], 1)),
    });
    return [
      { key: "name", title: "Class", header: true, value: (row) => row.name, text: (row) => row.name },
      {
        key: "count",
        title: "Samples",
        numeric: true,
        help: "samples of this class",
        value: (row) => row.count,
        text: (row) => whole(row.count),
      },
      {
        key: "predicted",
        title: "Predicted",
        numeric: true,
        help: "samples predicted to be this class",
        value: (row) => row.predicted,
        text: (row) => whole(row.predicted),
      },
      share("recall", "Recall, %", "of this class's samples, those found"),
      share("precision", "Right, %", "of those predicted to be this class, those right (precision)"),
      share("said", "Says, %", "mean confidence where this class is predicted"),
      {
        key: "gap",
        title: "Gap",
        numeric: true,
        help: "says minus right, in points: positive is over-confident",
        value: (row) => row.gap,
        cell: gapCell,
      },
      {
        key: "ece",
        title: "ECE, %",
        numeric: true,
        help: "calibration error of this class's probability",
        value: (row) => row.ece,
        text: (row) => (missing(row.ece) ? C.DASH : fixed(100 * row.ece, 2)),
      },
    ];
  }

  function classesPanel(subject) {
    const rows = subject.per_class;
    if (!rows || !rows.length) return absent("classes", "Class by class");
    const table = C.dataTable({ columns: classColumns(), rows, label: "Class by class", name: "classes" });
    const found = h("span", { class: "dim", role: "status" });
    const input = h("input", {
      type: "search",
      placeholder: "Filter the classes",
      "aria-label": "Filter the classes",
      "data-control": "class-filter",
      input: () => narrow(),
    });
    function narrow() {
      const wanted = input.value.trim().toLowerCase();
      const count = table.filter((row) => String(row.name).toLowerCase().includes(wanted));
      found.textContent = wanted ? `${whole(count)} of ${whole(rows.length)} classes` : `${whole(rows.length)} classes`;
    }
    narrow();
    const more = rows.length > 60 ? note("On paper, the first 60 in the order chosen on the screen.") : null;
    if (more) more.classList.add("print-only");
    const element = panel(
      "classes",
      "Class by class",
      h("div", { class: "toolbar no-print" }, input, found),
      table.element,
      more,
    );
    return { element };
  }

  /* ---- high-confidence errors ---- */

  function aboveSentence({ threshold, errors, samples }) {
    const least = `a confidence of at least ${C.short(threshold)}`;
    return samples
      ? `${whole(errors)} of the ${whole(samples)} samples with ${least} are wrong.`
      : `No sample has ${least}.`;
  }

  function errorsPanel(subject) {
    const errors = subject.errors || [],
      above = subject.errors_above;
    const title = "Surest and wrong";
    const sentence = above ? `${aboveSentence(above)} ` : "";
    if (!errors.length) return { element: panel("errors", title, note(`${sentence}There is no error to show.`)) };
    const pictured = errors.some((error) => error.image);
    const body = pictured ? h("ul", { class: "gallery" }, errors.map(errorCard)) : errorTable(errors);
    return {
      element: panel("errors", title, note(`${sentence}The ${whole(errors.length)} most confident errors:`), body),
    };
  }

  const rowName = (error) => (missing(error.index) ? `row ${error.row}` : `sample ${error.index}`);

  function errorCard(error) {
    const safe = typeof error.image === "string" && error.image.startsWith("data:image/");
    const picture = safe
      ? h("img", { src: error.image, alt: `${rowName(error)}, a ${error.label}` })
      : h("span", { class: "no-picture" }, "no picture");
    return h(
      "li",
      { class: "error", "data-row": error.row },
      picture,
      h(
        "p",
        {},
        h(
          "span",
          { class: "error-said" },
          `says ${error.predicted}, `,
          h("span", { class: "nowrap" }, C.probability(error.confidence)),
        ),
        h(
          "span",
          { class: "error-is" },
          `is ${error.label}, `,
          h("span", { class: "nowrap" }, C.probability(error.label_probability)),
        ),
        h("span", { class: "dim" }, rowName(error)),
      ),
    );
  }

  function errorTable(errors) {
    const columns = [
      {
        key: "row",
        title: "Sample",
        header: true,
        value: (row) => (missing(row.index) ? row.row : row.index),
        text: rowName,
      },
      { key: "predicted", title: "Says", value: (row) => row.predicted, text: (row) => row.predicted },
      {
        key: "confidence",
        title: "Confidence",
        numeric: true,
        value: (row) => row.confidence,
        text: (row) => C.probability(row.confidence),
      },
      { key: "label", title: "Is", value: (row) => row.label, text: (row) => row.label },
      {
        key: "label_probability",
        title: "Its probability",
        numeric: true,
        value: (row) => row.label_probability,
        text: (row) => C.probability(row.label_probability),
      },
    ];
    return C.dataTable({ columns, rows: errors, label: "Most confident errors", name: "errors" }).element;
  }

  /* ---- the scale s ---- */

  function drawScale(scale, svg, width) {
    const share = (counts) => {
      const all = counts.reduce((sum, count) => sum + count, 0) || 1;
      return counts.map((count) => count / all);
    };
    const right = share(scale.correct),
      wrong = share(scale.wrong),
      { edges } = scale;
    const most = Math.max(...right, ...wrong),
      height = 230;
    const plot = new C.Plot(svg, {
      width,
      height,
      left: 46,
      x: [edges[0], edges[edges.length - 1]],
      y: [0, most * 1.08],
    });
    plot.axes({
      xTicks: C.niceTicks(edges[0], edges[edges.length - 1], 5),
      yTicks: C.niceTicks(0, most, 4),
      yText: (t) => C.short(100 * t),
      xLabel: "scale s",
      yLabel: "of each group, %",
    });
    right.forEach((value, k) => plot.bar([edges[k], edges[k + 1]], [0, value], "fill-blue-soft", { gap: 0.5 }));
    wrong.forEach((value, k) => plot.bar([edges[k], edges[k + 1]], [0, value], "outline-orange", { gap: 0.5 }));
    if (scale.mean >= edges[0] && scale.mean <= edges[edges.length - 1])
      plot.rule(scale.mean, "current", `mean ${fixed(scale.mean, 3)}`);
    const items = right.map((value, k) => ({
      x: plot.px((edges[k] + edges[k + 1]) / 2),
      text:
        `s from ${C.short(edges[k])} to ${C.short(edges[k + 1])}: ` +
        `${percent(value, 1)} of the right, ${percent(wrong[k], 1)} of the wrong.`,
    }));
    return {
      height,
      label:
        "Distribution of the scale s among right and wrong answers: " +
        `mean ${fixed(scale.mean, 3)}, spread over mean ${fixed(scale.cv, 3)}.`,
      items,
      top: plot.box.top,
      bottom: plot.box.bottom,
    };
  }

  function drawDeciles(scale, svg, width) {
    const parts = scale.by_decile,
      known = parts.filter((part) => part.count > 0),
      height = 230;
    const values = known.flatMap((part) => [part.accuracy, part.confidence]);
    const low = Math.max(0, Math.min(...values) - 0.03),
      high = Math.min(1, Math.max(...values) + 0.03);
    const plot = new C.Plot(svg, { width, height, left: 46, x: [0.5, parts.length + 0.5], y: [low, high] });
    plot.axes({
      xTicks: parts.map((_, k) => k + 1),
      yTicks: C.niceTicks(low, high, 4),
      yText: (t) => C.short(100 * t),
      xLabel: "tenths of the samples, smallest s first",
      yLabel: "%",
    });
    const xs = parts.map((_, k) => k + 1),
      pick = (key) => parts.map((part) => (part.count > 0 ? part[key] : null));
    for (const [key, kind] of [
      ["confidence", "orange"],
      ["accuracy", "blue"],
    ]) {
      plot.line(xs, pick(key), kind);
      pick(key).forEach((value, k) => !missing(value) && plot.dot(xs[k], value, `dot-${kind}`, 4));
    }
    const items = parts.map((part, k) => ({
      x: plot.px(k + 1),
      text:
        `s ${C.short(part.low)}–${C.short(part.high)}, ${whole(part.count)} samples: ` +
        `says ${percent(part.confidence, 1)}, right ${percent(part.accuracy, 1)}.`,
    }));
    const ends = [known[0], known[known.length - 1]].map(
      (part) => `says ${percent(part.confidence, 1)}, right ${percent(part.accuracy, 1)}`,
    );
    return {
      height,
      label: `Accuracy and confidence by tenths of s. Smallest s: ${ends[0]}; largest: ${ends[1]}.`,
      items,
      top: plot.box.top,
      bottom: plot.box.bottom,
    };
  }

  function scalePanel(subject) {
    const { scale } = subject,
      title = "The scale s, and being right";
    if (!scale) return absent("scale", title);
    const hint = "";
    const spread = C.chart({ name: "scale", hint, draw: (svg, width) => drawScale(scale, svg, width) });
    const deciles = C.chart({ name: "scale-deciles", hint, draw: (svg, width) => drawDeciles(scale, svg, width) });
    const numbers = C.numbersTable("Show the numbers", ["s", "samples", "says", "right"]);
    numbers.write(
      scale.by_decile.map((part) => [
        `${C.short(part.low)}–${C.short(part.high)}`,
        whole(part.count),
        percent(part.confidence),
        percent(part.accuracy),
      ]),
    );
    const words =
      "CalAttn divides each sample's logits by its own s. " +
      `Here s is ${fixed(scale.mean, 3)} on average; its standard deviation is ${percent(scale.cv, 1)} of that.`;
    const left = h(
      "div",
      {},
      spread.element,
      C.legend([
        ["key-bar-soft", "right answers"],
        ["key-outline", "wrong answers"],
      ]),
    );
    const right = h(
      "div",
      {},
      deciles.element,
      C.legend([
        ["key-blue", "right"],
        ["key-orange", "says"],
      ]),
    );
    return { element: panel("scale", title, note(words), h("div", { class: "pair" }, left, right), numbers.element) };
  }

  /* ---- training dynamics ---- */

  const COLOURS = ["blue", "orange", "green", "purple", "sky", "ink"];
  const PANELS = {
    loss: ["Loss", 1],
    accuracy: ["Accuracy, %", 100],
    calibration: ["Calibration, %", 100],
    scale: ["Scale s", 1],
  };

  function drawDynamics(dynamics, name, svg, width) {
    const [title, factor] = PANELS[name] || [name, 1],
      { epoch } = dynamics;
    const series = dynamics.series.filter((one) => one.panel === name);
    const known = series.flatMap((one) => one.values.filter((value) => !missing(value)));
    const low = Math.min(...known),
      high = Math.max(...known),
      pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.1;
    const first = epoch[0],
      last = epoch[epoch.length - 1],
      height = 210;
    const plot = new C.Plot(svg, {
      width,
      height,
      left: 46,
      above: 26,
      x: [first, last > first ? last : first + 1],
      y: [low - pad, high + pad],
    });
    const ticks = C.niceTicks(first, Math.max(last, first + 1), 6).filter(Number.isInteger);
    plot.axes({
      xTicks: ticks,
      yTicks: C.niceTicks(low - pad, high + pad, 4),
      yText: (t) => C.short(factor * t),
      xLabel: "epoch",
    });
    svg.append(C.s("text", { class: "plot-title", x: 46, y: 13 }, title));
    (dynamics.marks || []).forEach((mark, k) => plot.rule(mark.epoch, "mark", mark.label, { row: k % 3 }));
    series.forEach((one, k) => plot.line(epoch, one.values, COLOURS[k % COLOURS.length]));
    const value = (one, k) => `${one.name} ${missing(one.values[k]) ? C.DASH : C.short(factor * one.values[k])}`;
    const items = epoch.map((at, k) => ({
      x: plot.px(at),
      text: `Epoch ${at}: ${series.map((one) => value(one, k)).join(", ")}.`,
    }));
    const ends = series.map((one) => {
      const there = one.values.filter((each) => !missing(each)).map((each) => C.short(factor * each));
      return `${one.name} from ${there[0]} to ${there[there.length - 1]}`;
    });
    return {
      height,
      label: `${title} over ${epoch.length} epochs: ${ends.join("; ")}.`,
      items,
      top: plot.box.top,
      bottom: plot.box.bottom,
    };
  }

  function dynamicsPanel(subject) {
    const { dynamics } = subject,
      title = "Training";
    if (!dynamics) return absent("dynamics", title);
    const full = dynamics.series.filter((one) => one.values.some((value) => !missing(value)));
    const shown = { ...dynamics, series: full };
    const charts = [...new Set(full.map((one) => one.panel))].map((name) => {
      const one = C.chart({
        name: `dynamics-${name}`,
        hint: "",
        draw: (svg, width) => drawDynamics(shown, name, svg, width),
      });
      const entries = full
        .filter((series) => series.panel === name)
        .map((series, k) => [`key-${COLOURS[k % COLOURS.length]}`, series.name]);
      return h("div", {}, one.element, C.legend(entries));
    });
    return { element: panel("dynamics", title, h("div", { class: "pair" }, charts)) };
  }

  /* ---- provenance, comparisons, methods ---- */

  function provenancePanel(subject) {
    const facts = h(
      "dl",
      { class: "facts" },
      subject.provenance.map(([name, value]) => [
        h("dt", {}, name),
        h("dd", {}, missing(value) ? C.DASH : String(value)),
      ]),
    );
    const spec = subject.spec
      ? h(
          "details",
          { class: "spec" },
          h("summary", {}, "The whole specification"),
          h("pre", { tabindex: "0" }, subject.spec),
        )
      : null;
    return { element: panel("provenance", "Where it comes from", facts, spec) };
  }

  function comparisonRow(row) {
    const effect = !row.significant
      ? "noise"
      : row.improved === true
        ? "better"
        : row.improved === false
          ? "worse"
          : "differs";
    const words = { noise: "within noise", better: "better", worse: "worse", differs: "differs" }[effect];
    return h(
      "tr",
      { "data-metric": row.name },
      h("th", { scope: "row" }, titleLink(row)),
      h("td", {}, h("span", { class: `effect effect-${effect}` }, words)),
      h("td", { class: "numeric" }, C.metricText(row, row.a)),
      h("td", { class: "numeric" }, C.metricText(row, row.b)),
      h(
        "td",
        { class: "numeric" },
        C.metricNumber(row, row.difference, { signed: true }),
        " ",
        h("span", { class: "dim" }, C.intervalText(row, row.low, row.high, { signed: true })),
      ),
      h("td", { class: "numeric" }, missing(row.p) ? C.DASH : row.p < 0.001 ? "< 0.001" : fixed(row.p, 3)),
      h("td", { class: "words" }, row.sentence || ""),
    );
  }

  function comparisonBlock(comparison) {
    const [a, b] = [comparison.a, comparison.b].map(
      (id) => (subjects.find((subject) => subject.id === id) || { title: id }).title,
    );
    const title = `${b}, against ${a}`;
    const heads = [
      ["Metric"],
      ["Effect"],
      [a, "numeric"],
      [b, "numeric"],
      [`Difference, ${levelText} interval`, "numeric"],
      ["p", "numeric"],
      ["In words", "words"],
    ];
    const head = h(
      "tr",
      {},
      heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)),
    );
    const table = h(
      "table",
      { class: "data", "data-table": "comparison" },
      h("thead", {}, head),
      h("tbody", {}, comparison.rows.map(comparisonRow)),
    );
    return h(
      "div",
      { class: "comparison", "data-comparison": comparison.b },
      h("h3", {}, title),
      h("p", { class: "sentence" }, comparison.summary),
      h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": title }, table),
    );
  }

  const comparisonSection = () =>
    h(
      "section",
      { class: "comparisons", "aria-label": "Comparison" },
      h("h2", {}, "What differs, and what is noise"),
      page.comparisons.map(comparisonBlock),
    );

  function methodsSection() {
    const entries = page.methods.map(([title, text]) =>
      h("div", { id: slug(title), tabindex: "-1" }, h("dt", {}, title), h("dd", {}, text)),
    );
    return h("section", { class: "methods" }, h("h2", {}, "How each number is defined"), h("dl", {}, entries));
  }

  /* ---- controls ---- */

  // One slider for all: the temperatures of every subject's grid.
  const grid = [...new Set(subjects.flatMap((subject) => profiles.get(subject.id).grid))].sort((a, b) => a - b);
  const slider = h("input", {
    type: "range",
    id: "temperature",
    min: 0,
    max: grid.length - 1,
    step: 1,
    "data-control": "temperature",
  });
  const readout = h("output", { for: "temperature", class: "readout-temperature", id: "temperature-readout" });

  function setTemperature(value) {
    state.own = null;
    for (const [id, profile] of profiles) state.at.set(id, profile.nearest(value));
    refresh();
  }

  function setOwn(by) {
    state.own = by;
    for (const [id, profile] of profiles) {
      const best = profile.best.find((one) => one.by === by);
      state.at.set(id, best ? best.index : profile.start);
    }
    refresh();
  }

  function setThreshold(value) {
    state.threshold = value;
    refresh();
  }

  function choice(label, name, options, value, change) {
    const select = h(
      "select",
      { "data-control": name, change: () => change(select.value) },
      options.map(([key, text]) => h("option", { value: key }, text)),
    );
    select.value = String(value);
    return h("label", { class: "field" }, h("span", {}, label), select);
  }

  function starButtons() {
    const names = [...new Set(subjects.flatMap((subject) => profiles.get(subject.id).best.map((best) => best.by)))];
    if (several)
      return names.map((by) =>
        h("button", { type: "button", "data-own": by, click: () => setOwn(by) }, `each at its own T* (${by})`),
      );
    return profiles.get(subjects[0].id).best.map((best) => starButton(best, () => setTemperature(best.value)));
  }

  function sliderMarks() {
    const end = grid.length - 1;
    const at = (value) =>
      grid.reduce(
        (best, one, k) => (Math.abs(Math.log(one / value)) < Math.abs(Math.log(grid[best] / value)) ? k : best),
        0,
      );
    const mark = (value, kind) => {
      const one = h("span", { class: `slider-mark ${kind}` });
      one.style.left = `calc(8px + (100% - 16px) * ${(at(value) / end).toFixed(4)})`; // 16px: the thumb's width
      return one;
    };
    const stars = subjects.flatMap((subject) =>
      profiles.get(subject.id).best.map((best) => mark(best.value, "star-mark")),
    );
    return h("span", { class: "slider-marks", "aria-hidden": "true" }, mark(1, "one-mark"), stars);
  }

  function controlBar() {
    slider.addEventListener("input", () => setTemperature(grid[Number(slider.value)]));
    const one = h("button", { type: "button", "data-reset": "1", click: () => setTemperature(1) }, "T = 1");
    return h(
      "div",
      { class: "controls no-print", role: "group", "aria-label": "Temperature and bins" },
      h(
        "div",
        { class: "temperature-field" },
        h("label", { for: "temperature" }, "Temperature"),
        h("span", { class: "slider-frame" }, slider, sliderMarks()),
        readout,
      ),
      h("div", { class: "buttons" }, one, starButtons()),
      choice(
        "Bins",
        "bins",
        BINS.map((count) => [count, String(count)]),
        state.bins,
        (value) => {
          state.bins = Number(value);
          refresh();
        },
      ),
      choice(
        "Binning",
        "binning",
        [
          ["width", "equal width"],
          ["count", "equal count"],
        ],
        state.binning,
        (value) => {
          state.binning = value;
          refresh();
        },
      ),
    );
  }

  function updateControls() {
    const first = live(subjects[0]);
    slider.value = String(grid.indexOf(first.temperature));
    readout.textContent = state.own ? "own T*" : temperatureText(first.temperature);
    slider.setAttribute(
      "aria-valuetext",
      state.own ? "each at its own T star" : `temperature ${temperatureText(first.temperature)}`,
    );
    for (const button of document.querySelectorAll(".controls button")) {
      const star = button.dataset.star && first.profile.best.find((best) => best.by === button.dataset.star);
      const on = button.dataset.own
        ? state.own === button.dataset.own
        : star
          ? first.index === star.index
          : button.dataset.reset && !state.own && !first.moved;
      button.setAttribute("aria-pressed", String(Boolean(on)));
    }
  }

  /* ---- the whole ---- */

  function panelsOf(subject) {
    const any = (test) => subjects.some(test);
    return [
      summaryPanel(subject),
      reliabilityPanel(subject),
      temperaturePanel(subject),
      actingPanel(subject),
      riskPanel(subject),
      metricsPanel(subject),
      any((one) => one.scale) && scalePanel(subject),
      any((one) => one.dynamics) && dynamicsPanel(subject),
      any((one) => one.errors) && errorsPanel(subject),
      any((one) => one.per_class) && classesPanel(subject),
      provenancePanel(subject),
    ].filter(Boolean);
  }

  const views = subjects.map((subject) => ({ subject, panels: panelsOf(subject) }));
  let waiting = false;

  /** Redraw what the controls change, at most once a frame. The state itself is already up to date. */
  function refresh() {
    updateControls();
    if (waiting) return;
    waiting = true;
    window.requestAnimationFrame(() => {
      waiting = false;
      update();
    });
  }

  function spoken(subject) {
    const { temperature, ece, nll } = live(subject);
    const numbers = `ECE ${percent(ece)}, NLL ${missing(nll) ? "infinite" : fixed(nll, 4)}`;
    return `${several ? `${subject.title}: ` : ""}T = ${temperatureText(temperature)}, ${numbers}`;
  }

  function update() {
    for (const { panels } of views) for (const one of panels) if (one.update) one.update();
    C.announce(subjects.map(spoken).join("; "));
  }

  function build() {
    const sections = views.map(({ subject, panels }) => {
      const element = h(
        "section",
        { class: "subject", "data-subject": subject.id, "aria-label": subject.title },
        panels.map((one) => one.element),
      );
      element.style.setProperty("--panels", String(panels.length));
      return element;
    });
    document.body.classList.add(several ? "several" : "single");
    document
      .getElementById("content")
      .append(
        ...[
          page.comparisons.length ? comparisonSection() : null,
          controlBar(),
          h("div", { class: "subjects" }, sections),
          methodsSection(),
        ].filter(Boolean),
      );
    const one = subjects[0];
    const facts = several
      ? [`${subjects.length} sets of predictions`]
      : [`${whole(one.samples)} samples`, `${whole(one.classes)} classes`];
    document.getElementById("meta").textContent = [...facts, `made ${C.dateText(page.made)}`].join(" · ");
    document.getElementById("colophon").textContent =
      `Made by calattn ${page.version}. In brackets: ${levelText} intervals. This file works without a network.`;
    updateControls();
    update();
  }

  build();
})();
