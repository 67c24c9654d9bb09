// Pixels and maps on canvases: a map is one pixel a patch, enlarged without smoothing.

const STOPS = [
  [8, 7, 30], [58, 15, 110], [120, 28, 109], [178, 48, 86],
  [228, 84, 45], [251, 146, 21], [247, 209, 61], [252, 255, 164],
];

export function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[low].map((value, i) => value + (place - low) * (STOPS[low + 1][i] - value));
}

// Canvas of the model input; channels beyond the third are not shown.
export function imageCanvas([channels, height, width], pixels, grey = false) {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const [{ data }, plane] = [image, width * height];
  const [second, third] = channels > 2 ? [plane, 2 * plane] : [0, 0];
  for (let i = 0; i < plane; i += 1) {
    let [red, green, blue] = [pixels[i], pixels[i + second], pixels[i + third]];
    if (grey) red = green = blue = 0.299 * red + 0.587 * green + 0.114 * blue;
    data[4 * i] = red;
    data[4 * i + 1] = green;
    data[4 * i + 2] = blue;
    data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

export function highest(values) {
  let most = -Infinity;
  for (const value of values) if (value > most) most = value;
  return most;
}

// A map [rows, columns] as pixels of a context of that size.
export function putMap(context, values, [rows, columns], least = 0) {
  const image = context.createImageData(columns, rows);
  const span = highest(values) - least;
  for (let i = 0; i < rows * columns; i += 1) {
    const [red, green, blue] = colour(span > 0 ? (values[i] - least) / span : 0);
    image.data.set([red, green, blue, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

export function mapCanvas({ values, grid, least }) {
  const canvas = new OffscreenCanvas(grid[1], grid[0]);
  putMap(canvas.getContext("2d"), values, grid, least);
  return canvas;
}

export function lowest(values) {
  let least = Infinity;
  for (const value of values) if (value < least) least = value;
  return least;
}

export function drawStage(canvas, { colourful, grey, map, grid, opacity, painted, cell, cursor }) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.imageSmoothingEnabled = colourful.width > 100;
  context.drawImage(colourful, 0, 0, width, height);
  if (map && opacity > 0) {
    context.globalAlpha = Math.min(1, opacity * 1.25);
    context.drawImage(grey, 0, 0, width, height);
    context.imageSmoothingEnabled = false;
    context.globalAlpha = opacity;
    context.drawImage(map, 0, 0, width, height);
    context.globalAlpha = 1;
  }
  drawGrid(context, grid, width, height);
  const box = ([row, column], [rows, columns] = grid) => [
    (column * width) / columns, (row * height) / rows, width / columns, height / rows,
  ];
  for (const index of painted) {
    hatch(context, box([Math.floor(index / grid[1]), index % grid[1]]));
  }
  if (cell) outline(context, box(cell.at, cell.grid), "#ffffff", "#0072b2");
  if (cursor) outline(context, box(cursor), "#1b1f24", "#f08a3c");
}

function drawGrid(context, [rows, columns], width, height) {
  context.strokeStyle = "rgba(255, 255, 255, 0.16)";
  context.lineWidth = 1;
  context.beginPath();
  for (let row = 1; row < rows; row += 1) {
    const y = Math.round((row * height) / rows) + 0.5;
    context.moveTo(0, y);
    context.lineTo(width, y);
  }
  for (let column = 1; column < columns; column += 1) {
    const x = Math.round((column * width) / columns) + 0.5;
    context.moveTo(x, 0);
    context.lineTo(x, height);
  }
  context.stroke();
}

function hatch(context, [x, y, w, h]) {
  context.save();
  context.beginPath();
  context.rect(x, y, w, h);
  context.clip();
  context.strokeStyle = "rgba(255, 255, 255, 0.55)";
  context.lineWidth = 1.5;
  context.beginPath();
  for (let start = -h; start < w; start += 9) {
    context.moveTo(x + start, y + h);
    context.lineTo(x + start + h, y);
  }
  context.stroke();
  context.restore();
}

function outline(context, [x, y, w, h], outer, inner) {
  context.lineWidth = 5;
  context.strokeStyle = outer;
  context.strokeRect(x + 1, y + 1, w - 2, h - 2);
  context.lineWidth = 2.5;
  context.strokeStyle = inner;
  context.strokeRect(x + 1, y + 1, w - 2, h - 2);
}

export function drawScale(canvas) {
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x += 1) {
    const [red, green, blue] = colour(x / (canvas.width - 1));
    context.fillStyle = `rgb(${red} ${green} ${blue})`;
    context.fillRect(x, 0, 1, canvas.height);
  }
}
