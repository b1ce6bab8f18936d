"use strict";
(() => {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const drawStrip = (canvas, data, columns, before, now) => {
    canvas.width = data.nCols;
    const brush = canvas.getContext("2d");
    const paint = (name, list) => {
      brush.fillStyle = color(name);
      for (const column of list) brush.fillRect(column, 0, 1, 1);
    };
    brush.fillStyle = color("--mask-off");
    brush.fillRect(0, 0, data.nCols, 1);
    paint("--mask-start", data.start);
    paint("--mask-old", columns.slice(0, before));
    paint("--mask-new", columns.slice(before, now));
  };

  const startPlayer = (player) => {
    const data = JSON.parse(player.querySelector("script.data").textContent);
    const slider = player.querySelector("input[type=range]");
    const button = player.querySelector(".play");
    const told = player.querySelector(".controls output");
    const cursor = player.querySelector(".cursor");
    const cards = [...player.querySelectorAll(".card:not(.target)")];
    const lines = [...player.querySelectorAll(".chart polyline")];
    const last = data.steps.length - 1;
    const end = data.steps[last];
    let place = 0;
    let timer = 0;

    const show = () => {
      const now = data.steps[place];
      const before = place > 0 ? data.steps[place - 1] : slider ? 0 : now - 1;
      if (slider) {
        slider.value = place;
        told.textContent = `step ${now} of ${end}`;
        slider.setAttribute("aria-valuetext", told.textContent);
        const x = 6 + (588 * now) / Math.max(end, 1);
        cursor.setAttribute("x1", x);
        cursor.setAttribute("x2", x);
      }
      const share = `50% ${last > 0 ? (100 * place) / last : 0}%`;
      data.policies.forEach((policy, index) => {
        const card = cards[index];
        card.querySelector(".score").textContent = policy.ssim[place].toFixed(4);
        for (const picture of card.querySelectorAll("img")) picture.style.objectPosition = share;
        drawStrip(card.querySelector("canvas"), data, policy.columns, before, now);
      });
    };
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      button.setAttribute("aria-label", "Play");
      button.firstElementChild.textContent = "▶";
    };
    const advance = () => {
      if (place >= last) { stop(); return; }
      place += 1;
      show();
    };
    player.querySelectorAll(".choice input").forEach((box, index) => {
      const choose = () => {
        cards[index].hidden = !box.checked;
        if (lines.length) lines[index].classList.toggle("off", !box.checked);
      };
      box.addEventListener("change", choose);
      choose();
    });
    if (slider) {
      slider.max = last;
      button.addEventListener("click", () => {
        if (timer) { stop(); return; }
        if (place >= last) { place = 0; show(); }
        button.setAttribute("aria-label", "Pause");
        button.firstElementChild.textContent = "❚❚";
        timer = setInterval(advance, 600);
      });
      slider.addEventListener("input", () => { stop(); place = Number(slider.value); show(); });
      addEventListener("beforeprint", () => { stop(); place = last; show(); });
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    show();
  };
  document.querySelectorAll(".player").forEach(startPlayer);
})();
