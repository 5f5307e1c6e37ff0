"use strict";
(() => {
  const tip = document.getElementById("tip");
  let hot = null;

  // highlight a configuration in every chart and in the table
  const light = (number) => {
    if (number === hot) return;
    for (const mark of document.querySelectorAll(".hot")) mark.classList.remove("hot");
    hot = number;
    if (number === null) return;
    for (const mark of document.querySelectorAll(`[data-c="${number}"]`)) mark.classList.add("hot");
  };

  const place = (event) => {
    const gap = 14, box = tip.getBoundingClientRect();
    const left = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
    const top = event.clientY + gap + box.height > innerHeight ? event.clientY - gap - box.height : event.clientY + gap;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  };

  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip], [data-c]") : null;
    light(mark && mark.dataset.c !== undefined ? mark.dataset.c : null);
    tip.hidden = !(mark && mark.dataset.tip);
    if (tip.hidden) return;
    tip.textContent = mark.dataset.tip;
    place(event);
  });
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);

  const compare = (a, b) => {
    const x = Number(a), y = Number(b);
    if (a === "" || b === "") return (a === "") - (b === "");
    return Number.isNaN(x) || Number.isNaN(y) ? String(a).localeCompare(String(b)) : x - y;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      const value = (row) => row.cells[column].dataset.v;
      rows.sort((a, b) => {
        if (value(a) === "" || value(b) === "") return compare(value(a), value(b)); // cells without a value stay last
        return (up ? 1 : -1) * compare(value(a), value(b));
      });
      table.tBodies[0].append(...rows);
    }));
  }
  document.documentElement.dataset.ready = "yes";
})();
