/* 3x3 convolutions with instance norm for a CPU: the paper's U-Net, and what its policy needs.

Images are stored pixel by pixel, 16 or a multiple of 16 channels side by side ("channels last");
all numbers are 32 bit. Normalization and ReLU of the U-Net's features are applied where the next
layer reads them, so that they cost no pass over memory. */

#include <math.h>
#include <string.h>
#include "cpu_vectors.h"
#include "cpu_winograd.h"
#include "cpu_winograd_weights.h"
#include "cpu_norm.h"

/* Convolve n images [row][col][n_in]; u holds the transformed weights as packed. */
void convolve(const float *in, float *out, const float *u, float *scratch, long n, long n_rows,
              long n_cols, long n_in, long n_out) {
    Features a = {in, n_in, 0, 0}, none = {0, 0, 0, 0};
    convolve_features(a, none, n, n_rows, n_cols, n_out, u, out, scratch);
}

/* Convolve images of one channel; weights are [9][n_out]. */
void convolve_first(const float *image, float *out, const float *weights, long n, long n_rows,
                    long n_cols, long n_out) {
    for (long i = 0; i < n; i++, image += n_rows * n_cols)
        for (long c = 0; c < n_out; c += LANES) {
            vec w[9];
            for (int k = 0; k < 9; k++) w[k] = load(weights + k * n_out + c);
            float *to = out + i * n_rows * n_cols * n_out + c;
            for (long y = 0; y < n_rows; y++)
                for (long x = 0; x < n_cols; x++, to += n_out) {
                    vec sum = zeros();
                    for (int a = 0; a < 3; a++)
                        for (int b = 0; b < 3; b++) {
                            long yy = y + a - 1, xx = x + b - 1;
                            if (yy >= 0 && yy < n_rows && xx >= 0 && xx < n_cols)
                                sum += image[yy * n_cols + xx] * w[3 * a + b];
                        }
                    store(to, sum);
                }
        }
}

/* Gradient of `convolve_first`'s weights, of each image: [image][9][n_out]. */
void weigh_first(const float *image, const float *gradient, float *to, long n, long n_rows,
                 long n_cols, long n_out) {
    for (long i = 0; i < n; i++, image += n_rows * n_cols, to += 9 * n_out)
        for (long c = 0; c < n_out; c += LANES) {
            vec total[9];
            for (int k = 0; k < 9; k++) total[k] = zeros();
            for (long y = 0; y < n_rows; y++) {
                vec sums[9];
                for (int k = 0; k < 9; k++) sums[k] = zeros();
                for (long x = 0; x < n_cols; x++) {
                    vec g = load(gradient + ((i * n_rows + y) * n_cols + x) * n_out + c);
                    for (int a = 0; a < 3; a++)
                        for (int b = 0; b < 3; b++) {
                            long yy = y + a - 1, xx = x + b - 1;
                            if (yy >= 0 && yy < n_rows && xx >= 0 && xx < n_cols)
                                sums[3 * a + b] += image[yy * n_cols + xx] * g;
                        }
                }
                for (int k = 0; k < 9; k++) total[k] += sums[k];
            }
            for (int k = 0; k < 9; k++) store(to + k * n_out + c, total[k]);
        }
}

/* Images whose features go through a level together: enough tiles for the products. */
static long images_at_once(long n, long n_rows, long n_cols) {
    long tiles = ((n_rows + 3) / 4) * ((n_cols + 3) / 4), some = BLOCK / tiles;
    return some < 1 ? 1 : some < n ? some : n;
}

typedef struct {
    long n, n_rows, n_cols, n_channels;
    float *data, *scale, *shift;
} Level;

static float *take(float **scratch, long n) {
    float *found = *scratch;
    *scratch += n;
    return found;
}

/* Two convolutions, each normalized; the second's output is left raw with its statistics. */
static void double_block(Features a, Features b, const float *image, Level to, const float **u,
                         float *scratch) {
    long n_in = a.n_channels + b.n_channels, size = to.n_rows * to.n_cols, c = to.n_channels;
    const float *first = *u, *second = first + (image ? 9 * c : POSITIONS * n_in * c);
    float *middle = take(&scratch, to.n * size * c);
    float *scale = take(&scratch, to.n * c), *shift = take(&scratch, to.n * c);
    if (image)
        convolve_first(image, middle, first, to.n, to.n_rows, to.n_cols, c);
    else
        convolve_features(a, b, to.n, to.n_rows, to.n_cols, c, first, middle, scratch);
    find_statistics(middle, to.n, to.n_rows, to.n_cols, c, scale, shift);
    Features between = {middle, c, scale, shift}, none = {0, 0, 0, 0};
    convolve_features(between, none, to.n, to.n_rows, to.n_cols, c, second, to.data, scratch);
    find_statistics(to.data, to.n, to.n_rows, to.n_cols, c, to.scale, to.shift);
    *u = second + POSITIONS * c * c;
}

static Level part_of(Level x, long begin, long n) {
    Level part = x;
    part.n = x.n - begin < n ? x.n - begin : n;
    part.data += begin * x.n_rows * x.n_cols * x.n_channels;
    part.scale += begin * x.n_channels;
    part.shift += begin * x.n_channels;
    return part;
}

static Level make_level(long n, long n_rows, long n_cols, long n_channels, float **scratch) {
    Level level = {n, n_rows, n_cols, n_channels, 0, 0, 0};
    level.data = take(scratch, n * n_rows * n_cols * n_channels);
    level.scale = take(scratch, n * n_channels);
    level.shift = take(scratch, n * n_channels);
    return level;
}

/* Run a double block over a level, a few images at a time. */
static void run_level(const float *image, const float *pooled, Level below, Level skip, Level to,
                      const float **u, float *scratch) {
    long group = images_at_once(to.n, to.n_rows, to.n_cols), size = to.n_rows * to.n_cols;
    const float *next = *u;
    for (long begin = 0; begin < to.n; begin += group) {
        Level part = part_of(to, begin, group);
        const float *weights = *u;
        float *free = scratch;
        Features a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
        if (pooled) {
            long n_in = below.n_channels;
            a = (Features){pooled + begin * size * n_in, n_in, 0, 0};
        } else if (!image) {
            Level source = part_of(below, begin, group), half = part_of(skip, begin, group);
            float *wide = take(&free, part.n * size * source.n_channels);
            normalize(source.data, source.data, source.scale, source.shift, source.n, source.n_rows,
                      source.n_cols, source.n_channels, 0);
            upsample(source.data, wide, free, part.n, source.n_rows, source.n_cols, to.n_rows,
                     to.n_cols, source.n_channels);
            a = (Features){wide, source.n_channels, 0, 0};
            b = (Features){half.data, half.n_channels, half.scale, half.shift};
        }
        double_block(a, b, image ? image + begin * size : 0, part, &weights, free);
        next = weights;
    }
    *u = next;
}

/* Floats of scratch that `unet` needs: features of every level, and work space of one. */
long unet_scratch(long n, long n_rows, long n_cols, long n_channels, long n_pools) {
    long total = 0, largest = 0, c = n_channels;
    for (long level = 0; level <= n_pools; level++) {
        long rows = n_rows >> level, cols = n_cols >> level, size = rows * cols;
        /* Down, pooled to a quarter, and up again; each with scale and shift. */
        total += 3 * n * (size + 2) * c;
        /* Twice the channels in and as many out, or less. */
        long work = images_at_once(n, rows, cols) * 2 * (size + 1) * c + cols * c +
                    POSITIONS * (STRIDE(2 * c, BLOCK) + STRIDE(c, BLOCK));
        largest = work > largest ? work : largest;
        c = level + 1 < n_pools ? 2 * c : c;
    }
    return total + largest;
}

/* Map n normalized images; weights are [9][C], the transformed ones in order, [C] and [1]. */
void unet(const float *image, float *out, const float *weights, float *scratch, long n, long n_rows,
          long n_cols, long n_channels, long n_pools) {
    Level levels[16], nowhere = {0, 0, 0, 0, 0, 0, 0}, x;
    const float *u = weights, *pooled = 0;
    long c = n_channels;
    for (long level = 0; level <= n_pools; level++) {
        x = make_level(n, n_rows >> level, n_cols >> level, c, &scratch);
        long n_in = level ? levels[level - 1].n_channels : 0;
        Level before = nowhere;
        before.n_channels = n_in;
        run_level(level ? 0 : image, pooled, before, nowhere, x, &u, scratch);
        levels[level] = x;
        if (level == n_pools) break;
        float *half = take(&scratch, n * (x.n_rows / 2) * (x.n_cols / 2) * c);
        normalize(x.data, half, x.scale, x.shift, n, x.n_rows, x.n_cols, c, 1);
        pooled = half;
        c = level + 1 < n_pools ? 2 * c : c;
    }
    for (long level = n_pools - 1; level >= 0; level--) {
        Level skip = levels[level];
        c = level ? skip.n_channels / 2 : skip.n_channels;
        Level to = make_level(n, skip.n_rows, skip.n_cols, c, &scratch);
        run_level(0, 0, x, skip, to, &u, scratch);
        x = to;
    }
    const float *last = u, bias = u[c];
    long size = x.n_rows * x.n_cols;
    for (long i = 0; i < n; i++)
        for (long k = 0; k < size; k++) {
            const float *from = x.data + (i * size + k) * c;
            vec sum = zeros();
            for (long g = 0; g < c; g += LANES) {
                vec scale = load(x.scale + i * c + g), shift = load(x.shift + i * c + g);
                sum += load(last + g) * adapt(load(from + g), scale, shift, 1);
            }
            out[i * size + k] = sum_lanes(sum) + bias;
        }
}
