/* The reliability diagram with the histogram beneath it, and the numbers that follow the slider. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, whole, fixed, missing, temperatureText, view, panel, ENOUGH, QUARTERS, hundredth } = C;

  function liveStrip(subject) {
    const words = view.words(subject);
    const parts = [
      ["temperature", "T"],
      ["ece", "ECE"],
      ["nll", "NLL"],
      ["confidence", words.mean],
      ["accuracy", words.share],
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
      const { temperature, ece, nll, said, right } = view.live(subject);
      write("temperature", temperature, temperatureText(temperature));
      write("ece", ece, percent(ece));
      write("nll", nll, view.nllText(subject, nll));
      write("confidence", said, percent(said));
      write("accuracy", right, percent(right));
    }
    return { element, update };
  }

  const SIDES = ["over", "under"];
  const sideText = (side, { confidence, rate }) => `${confidence} ${side === "over" ? "above" : "below"} ${rate}`;

  /** Which way a bin errs; null where the difference would not be seen. */
  function sideOf({ said, right }) {
    if (Math.abs(said - right) < 0.0005) return null;
    return said > right ? "over" : "under";
  }

  const meansText = ({ said, right }, { confidence, rate }) =>
    `mean ${confidence} ${percent(said, 1)}, ${rate} ${percent(right, 1)}`;

  function binText(bin, place, words) {
    const [low, high] = C.consistency(bin.count, bin.said);
    const range = `${words.confidence} ${fixed(bin.low, 2)}–${fixed(bin.high, 2)}`;
    const name = bin.low === null ? `Bin ${place + 1} of ${view.bins}` : range[0].toUpperCase() + range.slice(1);
    const chance = `chance alone: ${percent(low, 1)} to ${percent(high, 1)}`;
    const side = sideOf(bin),
      verdict = side ? `: ${sideText(side, words)}` : "";
    return `${name}: ${whole(bin.count)} samples, ${meansText(bin, words)} (${chance})${verdict}.`;
  }

  /** Of many samples darker; of fewer than a rate can rest on, hollow. */
  const weightOf = (count, most) => ({
    hollow: count < ENOUGH,
    opacity: count < ENOUGH ? 1 : 0.3 + 0.6 * Math.sqrt(count / most),
  });

  /** Solid up to the smaller of confidence and accuracy, hatched to the larger; a line marks the accuracy. */
  function drawWidthBins(plot, svg, bins, ghosts) {
    const paints = { over: C.hatch(svg, "hatch-over"), under: C.hatch(svg, "hatch-under", { falling: true }) };
    const gap = view.bins > 20 ? 1 : 2,
      most = Math.max(...bins.map((bin) => bin.count));
    for (const bin of bins.filter((one) => one.count)) {
      const sides = [bin.low, bin.high],
        side = sideOf(bin),
        { hollow, opacity } = weightOf(bin.count, most);
      plot.bar(sides, [0, Math.min(bin.said, bin.right)], hollow ? "hollow" : "fill-blue", { gap, opacity });
      if (side) plot.bar(sides, [bin.right, bin.said], `gap-${side}`, { gap, paint: hollow ? "none" : paints[side] });
      plot.bar(sides, [bin.right, bin.right], hollow ? "right-line hollow" : "right-line", { gap });
    }
    for (const bin of ghosts) if (bin.count) plot.segment([bin.low, bin.right], [bin.high, bin.right], "ghost");
  }

  function drawCountBins(plot, bins, ghosts) {
    for (const bin of ghosts) if (bin.count) plot.dot(bin.said, bin.right, "dot-ghost", 4);
    for (const bin of bins)
      if (bin.count) plot.segment([bin.said, bin.right], [bin.said, bin.said], `gap-line ${sideOf(bin)}`);
    for (const bin of bins) if (bin.count) plot.dot(bin.said, bin.right, bin.count < ENOUGH ? "dot-hollow" : "dot-blue", 4.5);
  }

  function drawConsistency(plot, bin) {
    const [low, high] = C.consistency(bin.count, bin.said);
    const middle = bin.low === null ? bin.said : (bin.low + bin.high) / 2;
    const x = plot.px(middle),
      y0 = plot.py(low),
      y1 = plot.py(high);
    plot.inside.append(C.s("path", { class: "line chance", d: `M${x} ${y0}V${y1}M${x - 3} ${y0}h6M${x - 3} ${y1}h6` }));
    return plot.px(middle);
  }

  function drawReliability(subject, svg, width) {
    const { profile, index, moved, temperature, said, right, ece } = view.live(subject),
      words = view.words(subject);
    const side = Math.min(width, 460),
      lower = 118;
    const plot = new C.Plot(svg, { width, height: side - 14, above: 8, below: 12, left: 46 });
    plot.axes({ xTicks: QUARTERS, xText: () => "", yTicks: QUARTERS, yText: hundredth, yLabel: `${words.rate}, %` });
    const bins = profile.bins(index, view.bins, view.binning);
    const ghosts = moved ? profile.bins(profile.start, view.bins, view.binning) : [];
    if (view.binning === "width") drawWidthBins(plot, svg, bins, ghosts);
    plot.segment([0, 0], [1, 1], "diagonal");
    const { xs, ys } = C.smoothCurve(profile.fine(index));
    plot.line(xs, ys, "smooth-rim").line(xs, ys, "smooth");
    const filled = bins.filter((bin) => bin.count > 0);
    const items = filled.map((bin) => ({
      x: drawConsistency(plot, bin),
      text: binText(bin, bins.indexOf(bin), words),
    }));
    if (view.binning === "count") drawCountBins(plot, bins, ghosts);
    const beneath = { width, top: side - 14, height: lower };
    drawHistogram(svg, beneath, profile.widthBins(index, view.bins), said, right, words);
    const worst = filled.reduce(
      (a, b) => (Math.abs(b.said - b.right) * b.count > Math.abs(a.said - a.right) * a.count ? b : a),
      filled[0],
    );
    const label =
      `Reliability diagram at temperature ${temperatureText(temperature)} with ${view.binsText()}: ` +
      `${meansText({ said, right }, words)}; ECE ${percent(ece)}. The bin that adds most: ` +
      `${meansText(worst, words)}, ${whole(worst.count)} samples. Below it, the histogram of ${words.it}.`;
    const box = { top: plot.box.top, bottom: side - 14 + lower - 36 };
    return { height: side - 14 + lower, label, items, plot: { box } };
  }

  function drawHistogram(svg, { width, top, height }, bins, said, right, words) {
    const all = bins.reduce((sum, bin) => sum + bin.count, 0);
    const most = Math.max(...bins.map((bin) => bin.count)) / all;
    const plot = new C.Plot(svg, { width, top, height, above: 8, left: 46, y: [0, most * 1.08] });
    plot.axes({
      xTicks: QUARTERS,
      xText: hundredth,
      yTicks: C.niceTicks(0, most, 2),
      yText: (t) => C.short(100 * t),
      xLabel: `${words.confidence}, %`,
      yLabel: "samples, %",
    });
    for (const bin of bins)
      plot.bar([bin.low, bin.high], [0, bin.count / all], "fill-grey", { gap: view.bins > 20 ? 1 : 2 });
    plot.rule(said, "mean-said", null);
    plot.rule(right, "mean-right", null);
    const crowd = (from, to) =>
      Math.max(...bins.filter((bin) => bin.high > from && bin.low < to).map((bin) => bin.count)) / all / most;
    const crossed = (from, to) => [said, right].filter((value) => value > from && value < to).length;
    const share = width < 440 ? 0.5 : 0.35; // of the width, that the words take
    const left = crowd(0, share) + crossed(0, share) <= crowd(1 - share, 1) + crossed(1 - share, 1); // where they hide least
    const place = { x: plot.px(left ? 0.02 : 0.98), "text-anchor": left ? "start" : "end" };
    const tell = (kind, down, text) =>
      plot.labels.append(C.s("text", { ...place, class: `note ${kind}`, y: plot.box.top + down }, text));
    tell("mean-said", 12, `┆ ${words.mean} ${percent(said, 1)}`);
    tell("mean-right", 27, `│ ${words.share} ${percent(right, 1)}`);
  }

  function reliabilityPanel(subject) {
    const strip = liveStrip(subject),
      words = view.words(subject);
    const hint = "Point at any chart for its numbers, or focus it and use the arrow keys.";
    const diagram = C.chart({
      name: "reliability",
      hint,
      most: 480,
      draw: (svg, width) => drawReliability(subject, svg, width),
    });
    const heads = ["bin", "samples", words.mean, words.share, "gap", "chance allows"],
      numbers = C.numbersTable("Show the numbers", heads);
    const key = h("div");
    function update() {
      strip.update();
      diagram.redraw();
      const { moved, profile, index } = view.live(subject);
      const dots = view.binning === "count",
        bins = profile.bins(index, view.bins, view.binning);
      const found = new Set(bins.filter((bin) => bin.count).map(sideOf));
      const sides = SIDES.filter((side) => found.has(side));
      const entries = [
        [dots ? "key-dot" : "key-right", `${words.rate} per bin`],
        ...sides.map((side) => [dots ? `key-line-${side}` : `key-${side}`, sideText(side, words)]),
        ["key-chance", `chance alone, if calibrated (${view.levelText})`],
        ["key-smooth", "smooth curve"],
        ...(bins.some((bin) => bin.count && bin.count < ENOUGH) ? [["key-hollow", `fewer than ${ENOUGH} samples`]] : []),
      ];
      key.replaceChildren(C.legend(moved ? [...entries, [dots ? "key-circle" : "key-ghost", "at T = 1"]] : entries));
      numbers.write(bins.map(binRow));
    }
    const element = panel(
      "reliability",
      `Does ${words.it} match the ${words.rate}?`,
      strip.element,
      diagram.element,
      key,
      numbers.element,
    );
    return { element, update };
  }

  function binRow(bin, place) {
    const name = bin.low === null ? `${place + 1}` : `${fixed(bin.low, 3)}–${fixed(bin.high, 3)}`;
    if (!bin.count) return [name, "0", C.DASH, C.DASH, C.DASH, C.DASH];
    const [low, high] = C.consistency(bin.count, bin.said);
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

  Object.assign(C, { reliabilityPanel });
})();
