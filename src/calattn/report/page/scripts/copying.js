/* Charts to take away: copied as a picture or as SVG, or saved where nothing may be copied. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h } = C;

  const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity"];
  const WRITTEN = ["font-family", "font-size", "font-weight", "paint-order"];

  /** The chart as text that any program draws alike: what the style sheet says is written on each element. */
  function svgText(svg) {
    const copy = svg.cloneNode(true),
      { width, height } = svg.viewBox.baseVal;
    const from = [svg, ...svg.querySelectorAll("*")],
      to = [copy, ...copy.querySelectorAll("*")];
    from.forEach((one, place) => {
      const style = getComputedStyle(one),
        names = one.tagName === "text" ? [...DRAWN, ...WRITTEN] : DRAWN;
      for (const name of names) {
        const value = style.getPropertyValue(name);
        if (value) to[place].style.setProperty(name, value);
      }
    });
    copy.querySelectorAll(".cursor").forEach((one) => one.remove());
    for (const [name, value] of Object.entries({ width, height })) copy.setAttribute(name, String(value));
    copy.removeAttribute("style");
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
    copy.prepend(C.s("rect", { width, height, style: `fill:${paper}` }));
    return new XMLSerializer().serializeToString(copy);
  }

  const asUrl = (text) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;

  /** A PNG of three dots a pixel, sharp enough for print. */
  function pngBlob(svg) {
    const { width, height } = svg.viewBox.baseVal,
      canvas = h("canvas", { width: 3 * width, height: 3 * height });
    return new Promise((done, failed) => {
      const picture = new Image();
      picture.onload = () => {
        canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
        canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("no picture"))), "image/png");
      };
      picture.onerror = () => failed(new Error("no picture"));
      picture.src = asUrl(svgText(svg));
    });
  }

  function save(blob, name) {
    const url = URL.createObjectURL(blob),
      link = h("a", { href: url, download: name });
    link.click();
    window.setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  async function take(button, blob, copy, name) {
    const before = button.textContent;
    try {
      await copy(blob);
      button.textContent = "copied";
    } catch {
      save(blob, name); // a page from disk may not be allowed to copy
      button.textContent = "saved";
    }
    window.setTimeout(() => {
      button.textContent = before;
    }, 1500);
  }

  function copyButtons(svg, name) {
    const written = (blob) => navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
    const png = async ({ currentTarget }) => take(currentTarget, await pngBlob(svg), written, `${name}.png`);
    const text = ({ currentTarget }) => {
      const blob = new Blob([svgText(svg)], { type: "image/svg+xml" });
      return take(currentTarget, blob, async () => navigator.clipboard.writeText(await blob.text()), `${name}.svg`);
    };
    const button = (kind, click) =>
      h("button", { type: "button", class: "small", "data-copy": kind, "aria-label": `Copy the chart as ${kind}`, click }, kind);
    return h("span", { class: "copying no-print" }, button("PNG", png), button("SVG", text));
  }

  Object.assign(C, { copyButtons });
})();
