/* The page: the panels of each subject side by side, and one control bar that drives them.
   A panel is {element, update()?}; update redraws what depends on temperature, bins or threshold. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, whole, temperatureText, view } = C;

  C.themeSwitch(document.getElementById("theme"));
  C.printing(document.getElementById("print"));
  if (!view) return;

  function panelsOf(subject) {
    const any = (test) => view.subjects.some(test);
    return [
      C.summaryPanel(subject),
      C.reliabilityPanel(subject),
      C.temperaturePanel(subject),
      C.actingPanel(subject),
      any((one) => one.risk_coverage) && C.riskPanel(subject),
      C.metricsPanel(subject),
      any((one) => one.scale) && C.scalePanel(subject),
      any((one) => one.dynamics) && C.dynamicsPanel(subject),
      any((one) => one.errors) && C.errorsPanel(subject),
      any((one) => one.per_class) && C.classesPanel(subject),
      C.provenancePanel(subject),
    ].filter(Boolean);
  }

  const columns = view.subjects.map((subject) => ({ subject, panels: panelsOf(subject) }));
  const controls = C.controlBar();
  let waiting = false;

  /** Redraw what the controls change, at most once a frame. The state itself is already up to date. */
  view.changed = () => {
    controls.update();
    if (waiting) return;
    waiting = true;
    window.requestAnimationFrame(() => {
      waiting = false;
      update();
    });
  };

  function spoken(subject) {
    const { temperature, ece, nll } = view.live(subject);
    const numbers = `ECE ${percent(ece)}, NLL ${view.nllText(subject, nll, "infinite")}`;
    return `${view.several ? `${subject.title}: ` : ""}T = ${temperatureText(temperature)}, ${numbers}`;
  }

  function update() {
    for (const { panels } of columns) for (const one of panels) if (one.update) one.update();
    C.announce(view.subjects.map(spoken).join("; "));
  }

  function columnOf({ subject, panels }) {
    const element = h(
      "section",
      { class: "subject", "data-subject": subject.id, "aria-label": subject.title },
      panels.map((one) => one.element),
    );
    element.style.setProperty("--panels", String(panels.length));
    return element;
  }

  function writeFrame() {
    const { made, version } = view.page,
      one = view.subjects[0];
    const facts = view.several
      ? [`${view.subjects.length} sets of predictions`]
      : [`${whole(one.samples)} samples`, `${whole(one.classes)} classes`];
    if (!C.missing(one.target)) facts.push(`P(${one.target}) against “the label is ${one.target}”`);
    document.getElementById("meta").textContent = [...facts, `made ${C.dateText(made)}`].join(" · ");
    document.getElementById("colophon").textContent =
      `Made by calattn ${version}. In brackets: ${view.levelText} intervals. This file works without a network.`;
  }

  function build() {
    const content = document.getElementById("content");
    document.body.classList.add(view.several ? "several" : "single");
    if (view.page.comparisons.length) content.append(C.comparisonSection());
    content.append(controls.element, h("div", { class: "subjects" }, columns.map(columnOf)), C.methodsSection());
    writeFrame();
    controls.update();
    update();
  }

  build();
})();
