/* SSIM of many images against known targets on a CPU: the paper's convention, one pass per image.

Rows are blurred first, then columns and the formula together; zeros lie outside the image. */

#include <string.h>
#include "cpu_vectors.h"

#define TAPS 11
#define EDGE 5

/* The first n numbers, and zeros. */
INLINE vec load_part(const float *at, long n) {
    vec found = zeros();
    if (n >= LANES) return load(at);
    memcpy(&found, at, sizeof(float) * (unsigned long)n);
    return found;
}

INLINE vec blur_across(const float *line, const float *window) {
    vec sum = zeros();
    for (int k = 0; k < TAPS; k++) sum += window[k] * load(line + k);
    return sum;
}

INLINE vec blur_down(const float *rows, long width, const float *window) {
    vec sum = zeros();
    for (int k = 0; k < TAPS; k++) sum += window[k] * load(rows + k * width);
    return sum;
}

static long padded(long n_cols) { return (n_cols + LANES - 1) / LANES * LANES; }

/* Floats of scratch that `ssim` needs. */
long ssim_scratch(long n_rows, long n_cols) {
    return 3 * (n_rows + 2 * EDGE) * padded(n_cols) + 3 * (padded(n_cols) + 2 * EDGE);
}

/* Blur the rows of scale * image + shift, of its square and of its product with the target. */
static void blur_rows(const float *image, const float *target, float scale, float shift,
                      const float *window, float *lines, float *blurred, long n_rows,
                      long n_cols) {
    long width = padded(n_cols), size = (n_rows + 2 * EDGE) * width, span = width + 2 * EDGE;
    memset(lines, 0, sizeof(float) * (unsigned long)(3 * span));
    for (int part = 0; part < 3; part++) {
        unsigned long edge = sizeof(float) * (unsigned long)(EDGE * width);
        memset(blurred + part * size, 0, edge);
        memset(blurred + part * size + (n_rows + EDGE) * width, 0, edge);
    }
    for (long y = 0; y < n_rows; y++) {
        for (long x = 0; x < n_cols; x++) {
            float value = scale * image[y * n_cols + x] + shift;
            lines[EDGE + x] = value;
            lines[span + EDGE + x] = value * value;
            lines[2 * span + EDGE + x] = value * target[y * n_cols + x];
        }
        for (long x = 0; x < width; x += LANES)
            for (int part = 0; part < 3; part++)
                store(blurred + part * size + (y + EDGE) * width + x,
                      blur_across(lines + part * span + x, window));
    }
}

/* Score n images; `rows` names the target of each, c1 and c2 belong to targets. */
void ssim(const float *image, const long long *rows, const float *scale, const float *shift,
          const float *target, const float *target_mean, const float *target_variance,
          const float *c1, const float *c2, const float *window, float *score, float *scratch,
          long n, long n_rows, long n_cols) {
    long width = padded(n_cols), size = (n_rows + 2 * EDGE) * width, n_pixels = n_rows * n_cols;
    float *blurred = scratch, *lines = scratch + 3 * size;
    for (long i = 0; i < n; i++) {
        const float *means = target_mean + rows[i] * n_pixels;
        const float *variances = target_variance + rows[i] * n_pixels;
        float a = c1[rows[i]], b = c2[rows[i]];
        double total = 0;
        blur_rows(image + i * n_pixels, target + rows[i] * n_pixels, scale[i], shift[i], window,
                  lines, blurred, n_rows, n_cols);
        for (long y = 0; y < n_rows; y++)
            for (long x = 0; x < n_cols; x += LANES) {
                long left = n_cols - x < LANES ? n_cols - x : LANES;
                const float *at = blurred + y * width + x;
                vec mean_y = load_part(means + y * n_cols + x, left);
                vec variance_y = load_part(variances + y * n_cols + x, left);
                vec mean = blur_down(at, width, window);
                vec variance = blur_down(at + size, width, window) - mean * mean;
                vec covariance = blur_down(at + 2 * size, width, window) - mean * mean_y;
                vec top = (2 * mean * mean_y + a) * (2 * covariance + b);
                vec bottom = (mean * mean + mean_y * mean_y + a) * (variance + variance_y + b);
                vec map = top / bottom;
                float sum = 0;
                if (left == LANES)
                    sum = sum_lanes(map);
                else
                    for (long k = 0; k < left; k++) sum += map[k];
                total += sum;
            }
        score[i] = (float)(total / (double)n_pixels);
    }
}
