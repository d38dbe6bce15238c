/* The scale s: its distribution, and how it goes with accuracy. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, whole, fixed, panel, absent, note } = C;

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
    const x = [edges[0], edges.at(-1)];
    const plot = new C.Plot(svg, { width, height, left: 46, x, y: [0, most * 1.08] });
    plot.axes({
      xTicks: C.niceTicks(...x, 5),
      yTicks: C.niceTicks(0, most, 4),
      yText: (t) => C.short(100 * t),
      xLabel: "scale s",
      yLabel: "of each group, %",
    });
    right.forEach((value, k) => plot.bar([edges[k], edges[k + 1]], [0, value], "fill-blue-soft", { gap: 0.5 }));
    wrong.forEach((value, k) => plot.bar([edges[k], edges[k + 1]], [0, value], "outline-orange", { gap: 0.5 }));
    plot.rule(scale.mean, "current", `mean ${fixed(scale.mean, 3)}`);
    const items = right.map((value, k) => ({
      x: plot.px((edges[k] + edges[k + 1]) / 2),
      text:
        `s from ${C.short(edges[k])} to ${C.short(edges[k + 1])}: ` +
        `${percent(value, 1)} of the correct, ${percent(wrong[k], 1)} of the wrong.`,
    }));
    const label =
      "Distribution of the scale s among correct and wrong predictions: " +
      `mean ${fixed(scale.mean, 3)}, spread over mean ${fixed(scale.cv, 3)}.`;
    return { height, label, items, plot };
  }

  function drawDeciles(scale, svg, width) {
    const parts = scale.by_decile,
      xs = parts.map((_, k) => k + 1),
      height = 230;
    const plot = new C.Plot(svg, { width, height, left: 46, x: [0.5, parts.length + 0.5] });
    plot.axes({
      xTicks: xs,
      yTicks: C.QUARTERS,
      yText: C.hundredth,
      xLabel: "tenths of the samples, smallest s first",
      yLabel: "%",
    });
    for (const [key, kind] of [["confidence", "orange"], ["accuracy", "blue"]]) {
      plot.line(xs, parts.map((part) => part[key]), kind);
      parts.forEach((part, k) => plot.dot(xs[k], part[key], `dot-${kind}`, 4));
    }
    const words = (part) => `confidence ${percent(part.confidence, 1)}, accuracy ${percent(part.accuracy, 1)}`;
    const items = parts.map((part, k) => ({
      x: plot.px(k + 1),
      text: `s ${C.short(part.low)}–${C.short(part.high)}, ${whole(part.count)} samples: ${words(part)}.`,
    }));
    const label = `Accuracy and confidence by tenths of s. Smallest s: ${words(parts[0])}; largest: ${words(parts.at(-1))}.`;
    return { height, label, items, plot };
  }

  function scalePanel(subject) {
    const { scale } = subject,
      title = "The scale s and accuracy";
    if (!scale) return absent("scale", title);
    const chart = (name, draw) => C.chart({ name, hint: "", draw: (svg, width) => draw(scale, svg, width) }).element;
    const numbers = C.numbersTable("Show the numbers", ["s", "samples", "confidence", "accuracy"]);
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
    const keys = [
      [["key-bar-soft", "correct predictions"], ["key-outline", "wrong predictions"]],
      [["key-blue", "accuracy"], ["key-orange", "confidence"]],
    ].map(C.legend);
    const left = h("div", {}, chart("scale", drawScale), keys[0]),
      right = h("div", {}, chart("scale-deciles", drawDeciles), keys[1]);
    return { element: panel("scale", title, note(words), h("div", { class: "pair" }, left, right), numbers.element) };
  }

  Object.assign(C, { scalePanel });
})();
