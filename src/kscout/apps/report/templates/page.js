"use strict";
(() => {
  const dialog = document.getElementById("magnifier");
  const stage = dialog.querySelector(".stage");
  const enlarge = (figure) => {
    stage.replaceChildren(figure.querySelector(".canvas svg").cloneNode(true));
    dialog.showModal();
  };
  for (const figure of document.querySelectorAll("figure.drawing")) {
    figure.querySelector(".canvas").addEventListener("click", () => enlarge(figure));
    figure.querySelector(".zoom").addEventListener("click", () => enlarge(figure));
  }
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => stage.replaceChildren());
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
})();
