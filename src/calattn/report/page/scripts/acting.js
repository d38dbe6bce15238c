/* Acting only above a confidence: how many samples that leaves, and how many of those are correct. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, fixed, missing, view, panel } = C;

  function drawActing(subject, svg, width) {
    const { profile, index } = view.live(subject);
    const height = 230,
      thresholds = Array.from({ length: 100 }, (_, k) => k / 100);
    const found = thresholds.map((threshold) => profile.above(index, threshold));
    const plot = new C.Plot(svg, { width, height, left: 46 });
    plot.axes({
      xTicks: C.QUARTERS,
      yTicks: C.QUARTERS,
      yText: C.hundredth,
      xLabel: `act only above this ${view.words(subject).confidence}`,
      yLabel: "%",
    });
    for (const [key, kind] of [["share", "green"], ["right", "blue"]])
      plot.line(thresholds, found.map((one) => one[key]), kind);
    plot.rule(view.threshold, "current", null);
    const now = profile.above(index, view.threshold),
      said = actingSentence(subject, view.threshold, now);
    plot.dot(view.threshold, now.share, "dot-green", 4.5);
    if (now.count) plot.dot(view.threshold, now.right, "dot-blue", 4.5);
    const items = thresholds.map((threshold, k) => ({
      x: plot.px(threshold),
      text: actingSentence(subject, threshold, found[k]),
    }));
    const label = `Samples acted on, and those of them ${view.words(subject).are}, over thresholds. ${said}`;
    return { height, label, items, plot };
  }

  function actingSentence(subject, threshold, { count, share, right }) {
    const { confidence, are } = view.words(subject);
    const start = `If you act only where ${confidence} is above ${fixed(threshold, 2)}, you act on`;
    return count
      ? `${start} ${percent(share, 1)} of the samples and ${percent(right, 1)} of those are ${are}.`
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
      input: () => view.setThreshold(Number(input.value)),
    });
    const shown = h("output", {}, "");
    const diagram = C.chart({ name: "acting", hint: "", draw: (svg, width) => drawActing(subject, svg, width) });
    function update() {
      const { profile, index } = view.live(subject),
        found = profile.above(index, view.threshold);
      input.value = String(view.threshold);
      input.setAttribute("aria-valuetext", `${view.words(subject).confidence} ${fixed(view.threshold, 2)}`);
      shown.textContent = fixed(view.threshold, 2);
      const text = actingSentence(subject, view.threshold, found);
      if (sentence.textContent !== text) sentence.textContent = text;
      sentence.setAttribute("data-coverage", String(found.share));
      sentence.setAttribute("data-accuracy", missing(found.right) ? "" : String(found.right));
      diagram.redraw();
    }
    const key = C.legend([
      ["key-green", "samples acted on"],
      ["key-blue", `of those, ${view.words(subject).are}`],
    ]);
    const title = `If you act only where ${view.words(subject).confidence} is high`;
    const slider = h("label", { class: "slider no-print" }, h("span", {}, "Threshold"), input, shown);
    return {
      element: panel("acting", title, sentence, slider, diagram.element, key),
      update,
    };
  }

  Object.assign(C, { actingPanel });
})();
