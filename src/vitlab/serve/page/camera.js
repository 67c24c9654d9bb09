// A photograph by the camera, in a dialog.

import { $, guarded } from "./page.js";
import { word } from "./words.js";

// `opened` is called with the file of each photograph.
export function listenToCamera(opened) {
  $("camera").addEventListener("click", openCamera);
  $("close").addEventListener("click", () => $("booth").close());
  $("booth").addEventListener("close", closeCamera);
  $("take").addEventListener("click", () => takePhoto(opened));
}

async function openCamera() {
  await guarded(async () => {
    try {
      $("video").srcObject = await navigator.mediaDevices.getUserMedia({ video: true });
    } catch (error) {
      throw new Error(word("noCamera", { reason: error.message }));
    }
    await $("video").play();
    $("booth").showModal();
  }, "camera");
}

function closeCamera() {
  for (const track of $("video").srcObject?.getTracks() ?? []) track.stop();
  $("video").srcObject = null;
}

async function takePhoto(opened) {
  const canvas = new OffscreenCanvas($("video").videoWidth, $("video").videoHeight);
  canvas.getContext("2d").drawImage($("video"), 0, 0);
  const file = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 });
  $("booth").close();
  await opened(new File([file], "camera.jpg"));
}
