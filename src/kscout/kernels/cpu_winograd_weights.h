/* The gradient of a convolution's weights, in the transformed tiles of `cpu_winograd.h`. */

/* Floats of transformed tiles that are worked on at once, near the second-level cache; with fewer
tiles, going back to 3x3 weights would cost more than the products. */
#define WEIGH_FLOATS 393216
#define SMALLEST_WEIGH 64
#define LARGEST_WEIGH 192

/* Outputs whose products are held together: the most that registers hold. */
#define CHUNK (N_VECTORS * LANES)

/* The adjoint of the weights' transform. */
INLINE void restore_weight(const vec *m, long step, vec *r, long r_step) {
    vec sum1 = (m[step] + m[2 * step]) * (1.0f / 6), sum2 = m[3 * step] + m[4 * step];
    r[0] = m[0] * 0.25f - sum1 + sum2 * (1.0f / 24);
    r[r_step] = (m[2 * step] - m[step]) * (1.0f / 6) + (m[3 * step] - m[4 * step]) * (1.0f / 12);
    r[2 * r_step] = sum2 * (1.0f / 6) - sum1 + m[5 * step];
}

INLINE void transform_gradient(const vec *g, long step, vec *r, long r_step) {
    vec even = g[0] + g[2 * step], odd = g[step] + g[3 * step];
    vec even2 = g[0] + 4.0f * g[2 * step], odd2 = 2.0f * g[step] + 8.0f * g[3 * step];
    r[0] = g[0];
    r[r_step] = even + odd;
    r[2 * r_step] = even - odd;
    r[3 * r_step] = even2 + odd2;
    r[4 * r_step] = even2 - odd2;
    r[5 * r_step] = g[3 * step];
}

static void read_gradient(const float *pixels, long n_rows, long n_cols, long n_channels, long row,
                          long col, float *to, long position_stride) {
    vec half[24], whole[36];
    for (int i = 0; i < 4; i++) {
        vec line[4];
        for (int j = 0; j < 4; j++)
            line[j] = row + i < n_rows && col + j < n_cols
                          ? load(pixels + ((row + i) * n_cols + col + j) * n_channels)
                          : zeros();
        transform_gradient(line, 1, half + 6 * i, 1);
    }
    for (int j = 0; j < 6; j++) transform_gradient(half + j, 6, whole + j, 6);
    for (int p = 0; p < POSITIONS; p++) store(to + p * position_stride, whole[p]);
}

/* Sums over tiles of N_INPUTS input channels times LANES * width output channels. */
INLINE void sum_products(const float *v, const float *g, long g_stride, float *to, long n_tiles,
                         const int width) {
    vec sums[N_INPUTS][N_VECTORS];
    for (int k = 0; k < N_INPUTS; k++)
        for (int w = 0; w < width; w++) sums[k][w] = zeros();
    for (long t = 0; t < n_tiles; t++, v += LANES, g += LANES) {
        vec gradient[N_VECTORS];
        for (int w = 0; w < width; w++) gradient[w] = load(g + w * g_stride);
        for (int k = 0; k < N_INPUTS; k++)
            for (int w = 0; w < width; w++) sums[k][w] += v[k] * gradient[w];
    }
    for (int k = 0; k < N_INPUTS; k++)
        for (int w = 0; w < width; w++) store(to + k * CHUNK + w * LANES, sums[k][w]);
}

/* Take products [36][n_in][CHUNK] back to 3x3 weights, and add them to [9][n_in][CHUNK]. */
static void add_restored(const float *products, float *to, long n_in, int width, int is_first) {
    for (long in = 0; in < n_in; in++)
        for (int w = 0; w < width; w++) {
            long at = in * CHUNK + w * LANES;
            vec half[18], whole[9];
            for (int j = 0; j < 6; j++) {
                vec column[6];
                for (int i = 0; i < 6; i++)
                    column[i] = load(products + (6 * i + j) * n_in * CHUNK + at);
                restore_weight(column, 1, half + j, 6);
            }
            for (int i = 0; i < 3; i++) restore_weight(half + 6 * i, 1, whole + 3 * i, 1);
            for (int k = 0; k < 9; k++) {
                float *sum = to + k * n_in * CHUNK + at;
                if (!is_first) whole[k] += load(sum);
                store(sum, whole[k]);
            }
        }
}

static long tiles_to_weigh(long n_in, long n_out) {
    long block = WEIGH_FLOATS / (POSITIONS * (n_in + n_out));
    return block < SMALLEST_WEIGH ? SMALLEST_WEIGH : block > LARGEST_WEIGH ? LARGEST_WEIGH : block;
}

/* Floats of scratch that `weigh` needs. */
long weigh_scratch(long n_in, long n_out) {
    long block = tiles_to_weigh(n_in, n_out), tiles = STRIDE(n_in, block) + STRIDE(n_out, block);
    return POSITIONS * (tiles + n_in * CHUNK) + 9 * n_in * (n_out + CHUNK);
}

/* Gradient of the weights [n_out][n_in][9], for outputs `begin` to `end` of them. */
void weigh(const float *in, const float *gradient, float *to, float *scratch, long n, long n_rows,
           long n_cols, long n_in, long n_out, long begin, long end) {
    long block = tiles_to_weigh(n_in, n_out), row = block * LANES, n_here = end - begin;
    long down = (n_rows + 3) / 4, across = (n_cols + 3) / 4, total = n * down * across;
    long in_stride = STRIDE(n_in, block), out_stride = STRIDE(n_here, block);
    float *v = scratch, *g = v + POSITIONS * in_stride, *products = g + POSITIONS * out_stride;
    float *sums = products + POSITIONS * n_in * CHUNK;
    Features features = {in, n_in, 0, 0};
    for (long first = 0; first < total; first += block) {
        long n_tiles = total - first < block ? total - first : block;
        for (long t = 0; t < n_tiles; t++) {
            long image = (first + t) / (down * across), place = (first + t) % (down * across);
            long y = place / across * 4, x = place % across * 4;
            const float *pixels = gradient + image * n_rows * n_cols * n_out + begin;
            read_features(features, image, n_rows, n_cols, y - 1, x - 1, v + t * LANES, row,
                          in_stride);
            for (long c = 0; c < n_here; c += LANES)
                read_gradient(pixels + c, n_rows, n_cols, n_out, y, x,
                              g + c / LANES * row + t * LANES, out_stride);
        }
        for (long c = 0; c < n_here; c += CHUNK) {
            int width = n_here - c >= CHUNK ? N_VECTORS : 1;
            for (long p = 0; p < POSITIONS; p++) {
                const float *from = g + p * out_stride + c / LANES * row;
                for (long k = 0; k < n_in; k += N_INPUTS) {
                    const float *tiles = v + p * in_stride + k / LANES * row + k % LANES;
                    float *found = products + (p * n_in + k) * CHUNK;
                    if (width == N_VECTORS)
                        sum_products(tiles, from, row, found, n_tiles, N_VECTORS);
                    else
                        sum_products(tiles, from, row, found, n_tiles, 1);
                }
            }
            add_restored(products, sums + 9 * n_in * c, n_in, width, first == 0);
        }
    }
    for (long out = 0; out < n_here; out++) {
        const float *from = sums + 9 * n_in * (out / CHUNK * CHUNK) + out % CHUNK;
        float *found = to + (begin + out) * n_in * 9;
        for (long k = 0; k < 9; k++)
            for (long i = 0; i < n_in; i++) found[9 * i + k] = from[(k * n_in + i) * CHUNK];
    }
}
