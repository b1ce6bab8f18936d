/* The gradient of a convolution's weights, in the transformed tiles of `cpu_winograd.h`. */

#define WEIGH_FLOATS 1048576
#define LARGEST_WEIGH 192

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

/* Add sums over tiles of N_INPUTS input channels times 16 * width output channels. */
INLINE void add_products(const float *v, const float *g, long g_stride, float *to, long n_out,
                         long n_tiles, const int width) {
    vec sums[N_INPUTS][N_VECTORS];
    for (int k = 0; k < N_INPUTS; k++)
        for (int w = 0; w < width; w++) sums[k][w] = load(to + k * n_out + w * LANES);
    for (long t = 0; t < n_tiles; t++, v += LANES, g += LANES) {
        vec gradient[N_VECTORS];
        for (int w = 0; w < width; w++) gradient[w] = load(g + w * g_stride);
        for (int k = 0; k < N_INPUTS; k++)
            for (int w = 0; w < width; w++) sums[k][w] += v[k] * gradient[w];
    }
    for (int k = 0; k < N_INPUTS; k++)
        for (int w = 0; w < width; w++) store(to + k * n_out + w * LANES, sums[k][w]);
}

static long tiles_to_weigh(long n_in, long n_out) {
    long block = WEIGH_FLOATS / (POSITIONS * (n_in + n_out));
    return block < 16 ? 16 : block > LARGEST_WEIGH ? LARGEST_WEIGH : block;
}

/* Floats of scratch that `weigh` needs. */
long weigh_scratch(long n_in, long n_out) {
    long block = tiles_to_weigh(n_in, n_out);
    return POSITIONS * (STRIDE(n_in, block) + STRIDE(n_out, block));
}

/* Gradient of the transformed weights [36][n_in][n_out], for outputs `begin` to `end` of them. */
void weigh(const float *in, const float *gradient, float *to, float *scratch, long n, long n_rows,
           long n_cols, long n_in, long n_out, long begin, long end) {
    long block = tiles_to_weigh(n_in, n_out), row = block * LANES, n_here = end - begin;
    long down = (n_rows + 3) / 4, across = (n_cols + 3) / 4, total = n * down * across;
    long in_stride = STRIDE(n_in, block), out_stride = STRIDE(n_here, block);
    float *v = scratch, *g = scratch + POSITIONS * in_stride;
    Features features = {in, n_in, 0, 0};
    for (long k = 0; k < POSITIONS * n_in; k++)
        memset(to + k * n_out + begin, 0, sizeof(float) * (unsigned long)n_here);
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
        for (long p = 0; p < POSITIONS; p++)
            for (long c = 0; c < n_here;) {
                int width = n_here - c >= LANES * N_VECTORS ? N_VECTORS : 1;
                const float *from = g + p * out_stride + c / LANES * row;
                for (long k = 0; k < n_in; k += N_INPUTS) {
                    const float *tiles = v + p * in_stride + k / LANES * row + k % LANES;
                    float *sums = to + (p * n_in + k) * n_out + begin + c;
                    if (width == N_VECTORS)
                        add_products(tiles, from, row, sums, n_out, n_tiles, N_VECTORS);
                    else
                        add_products(tiles, from, row, sums, n_out, n_tiles, 1);
                }
                c += LANES * width;
            }
    }
}
