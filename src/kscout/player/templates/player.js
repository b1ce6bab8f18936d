"use strict";
(() => {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const drawStrip = (canvas, data, columns, step) => {
    canvas.width = data.nCols;
    const brush = canvas.getContext("2d");
    const paint = (name, list) => {
      brush.fillStyle = color(name);
      for (const column of list) brush.fillRect(column, 0, 1, 1);
    };
    brush.fillStyle = color("--mask-off");
    brush.fillRect(0, 0, data.nCols, 1);
    paint("--mask-start", data.start);
    paint("--mask-old", columns.slice(0, step));
    if (step > 0) paint("--mask-new", [columns[step - 1]]);
  };

  const startPlayer = (player) => {
    const data = JSON.parse(player.querySelector("script.data").textContent);
    const slider = player.querySelector("input");
    const button = player.querySelector(".play");
    const told = player.querySelector(".controls output");
    const cursor = player.querySelector(".cursor");
    const cards = [...player.querySelectorAll(".card:not(.target)")];
    const last = Number(player.dataset.steps);
    let timer = 0;

    const show = () => {
      const step = Number(slider.value);
      told.textContent = `step ${step} of ${last}`;
      slider.setAttribute("aria-valuetext", `step ${step} of ${last}`);
      const x = 6 + (588 * step) / Math.max(last, 1);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      data.policies.forEach((policy, index) => {
        const card = cards[index];
        card.querySelector(".score").textContent = policy.ssim[step].toFixed(4);
        card.querySelector(".shot").src = policy.images[step];
        card.querySelector(".error").src = policy.errors[step];
        drawStrip(card.querySelector("canvas"), data, policy.columns, step);
      });
    };
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      button.setAttribute("aria-label", "Play");
      button.firstElementChild.textContent = "▶";
    };
    const advance = () => {
      if (Number(slider.value) >= last) { stop(); return; }
      slider.value = Number(slider.value) + 1;
      show();
    };
    button.addEventListener("click", () => {
      if (timer) { stop(); return; }
      if (Number(slider.value) >= last) { slider.value = 0; show(); }
      button.setAttribute("aria-label", "Pause");
      button.firstElementChild.textContent = "❚❚";
      timer = setInterval(advance, 600);
    });
    slider.addEventListener("input", () => { stop(); show(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    show();
  };
  document.querySelectorAll(".player").forEach(startPlayer);
})();
