/* Risk against coverage: whether errors have low confidence. */
(() => {
  "use strict";
  const C = window.calattn;
  const { percent, panel, note } = C;

  function drawRisk(subject, svg, width) {
    const { coverage, risk, optimal, aurc } = subject.risk_coverage;
    const most = Math.max(...risk, 0.01),
      height = 230;
    const plot = new C.Plot(svg, { width, height, left: 46, y: [0, most * 1.08] });
    plot.axes({
      xTicks: C.QUARTERS,
      xText: C.hundredth,
      yTicks: C.niceTicks(0, most, 4),
      yText: (t) => C.short(100 * t),
      xLabel: "coverage, most confident first, %",
      yLabel: "error rate, %",
    });
    plot.line(coverage, optimal, "optimal").line(coverage, risk, "orange");
    if (coverage.length === 1) plot.dot(coverage[0], risk[0], "dot-orange"); // all confidences tie
    const items = coverage.map((share, k) => ({
      x: plot.px(share),
      text: `Most confident ${percent(share, 1)}: error rate ${percent(risk[k])}; a perfect order would have ${percent(optimal[k])}.`,
    }));
    const half = coverage.findIndex((share) => share >= 0.5);
    const label =
      `Risk against coverage: error rate ${percent(risk[half])} on the most confident half, ` +
      `${percent(risk[risk.length - 1])} on all; area under the curve (AURC) ${percent(aurc)}.`;
    return { height, label, items, plot };
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
        "Do errors have low confidence?",
        note("Error rate among the most confident samples, at T = 1."),
        diagram.element,
        key,
      ),
    };
  }

  Object.assign(C, { riskPanel });
})();
