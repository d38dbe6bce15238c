/* The scale s: its distribution, and how it goes with accuracy. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, whole, fixed, missing, panel, absent, note } = C;

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
        `${percent(value, 1)} of the correct, ${percent(wrong[k], 1)} of the wrong.`,
    }));
    return {
      height,
      label:
        "Distribution of the scale s among correct and wrong predictions: " +
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
        `confidence ${percent(part.confidence, 1)}, accuracy ${percent(part.accuracy, 1)}.`,
    }));
    const ends = [known[0], known[known.length - 1]].map(
      (part) => `confidence ${percent(part.confidence, 1)}, accuracy ${percent(part.accuracy, 1)}`,
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
      title = "The scale s and accuracy";
    if (!scale) return absent("scale", title);
    const hint = "";
    const spread = C.chart({ name: "scale", hint, draw: (svg, width) => drawScale(scale, svg, width) });
    const deciles = C.chart({ name: "scale-deciles", hint, draw: (svg, width) => drawDeciles(scale, svg, width) });
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
    const left = h(
      "div",
      {},
      spread.element,
      C.legend([
        ["key-bar-soft", "correct predictions"],
        ["key-outline", "wrong predictions"],
      ]),
    );
    const right = h(
      "div",
      {},
      deciles.element,
      C.legend([
        ["key-blue", "accuracy"],
        ["key-orange", "confidence"],
      ]),
    );
    return { element: panel("scale", title, note(words), h("div", { class: "pair" }, left, right), numbers.element) };
  }

  Object.assign(C, { scalePanel });
})();
