/* 3x3 convolutions by Winograd's F(4x4, 3x3), arXiv 1509.09308, at the points 0, 1, -1, 2, -2 and
infinity: a tile of 6x6 pixels is transformed, 36 matrix products over the channels take the place
of 144, and 4x4 outputs come back. */

#define POSITIONS 36

/* Tiles that are transformed and multiplied at once. With fewer, reading the weights again for each
block costs more than tiles that leave the second-level cache. A multiple of N_TILES. */
#define BLOCK 96

/* Weights are stored [position][output / 32][input][32 outputs]; left outputs come last. */
#define PANEL 32

/* Floats from one position of tiles to the next: odd in cache lines, so that the positions of one
tile do not fall into the same few sets of a cache. */
#define STRIDE(n_channels, block) \
    ((n_channels) * (block) + 16 * (1 - (n_channels) * (block) / 16 % 2))

/* Features of n images; what is read of them is scale * x + shift, not below zero. */
typedef struct {
    const float *data;
    long n_channels;
    const float *scale; /* [image][channel], or NULL: taken as they are */
    const float *shift;
} Features;

INLINE vec adapt(vec x, vec scale, vec shift, int adapts) {
    return adapts ? larger(x * scale + shift, zeros()) : x;
}

INLINE void transform_input(const vec *d, long step, vec *r, long r_step) {
    vec even = d[4 * step] - 4.0f * d[2 * step], odd = d[3 * step] - 4.0f * d[step];
    vec even2 = d[4 * step] - d[2 * step], odd2 = 2.0f * (d[3 * step] - d[step]);
    r[0] = 4.0f * d[0] - 5.0f * d[2 * step] + d[4 * step];
    r[r_step] = even + odd;
    r[2 * r_step] = even - odd;
    r[3 * r_step] = even2 + odd2;
    r[4 * r_step] = even2 - odd2;
    r[5 * r_step] = 4.0f * d[step] - 5.0f * d[3 * step] + d[5 * step];
}

INLINE void transform_output(const vec *m, long step, vec *r, long r_step) {
    vec sum1 = m[step] + m[2 * step], sum2 = m[3 * step] + m[4 * step];
    vec odd1 = m[step] - m[2 * step], odd2 = m[3 * step] - m[4 * step];
    r[0] = m[0] + sum1 + sum2;
    r[r_step] = odd1 + 2.0f * odd2;
    r[2 * r_step] = sum1 + 4.0f * sum2;
    r[3 * r_step] = odd1 + 8.0f * odd2 + m[5 * step];
}

INLINE void read_tile(const float *pixels, long n_rows, long n_cols, long n_channels, long row,
                      long col, vec scale, vec shift, int adapts, int inside, float *to,
                      long position_stride) {
    vec half[36], whole[36];
    for (int i = 0; i < 6; i++) {
        vec line[6];
        long y = row + i;
        int has_row = inside || (y >= 0 && y < n_rows);
        for (int j = 0; j < 6; j++) {
            long x = col + j;
            const float *at = pixels + (y * n_cols + x) * n_channels;
            int exists = inside || (has_row && x >= 0 && x < n_cols);
            line[j] = exists ? adapt(load(at), scale, shift, adapts) : zeros();
        }
        transform_input(line, 1, half + 6 * i, 1);
    }
    for (int j = 0; j < 6; j++) transform_input(half + j, 6, whole + j, 6);
    for (int p = 0; p < POSITIONS; p++) store(to + p * position_stride, whole[p]);
}

INLINE void write_tile(const float *from, long position_stride, float *pixels, long n_rows,
                       long n_cols, long n_channels, long row, long col) {
    vec half[24], line[4];
    for (int j = 0; j < 6; j++) {
        vec column[6];
        for (int i = 0; i < 6; i++) column[i] = load(from + (6 * i + j) * position_stride);
        transform_output(column, 1, half + j, 6);
    }
    long last_row = n_rows - row < 4 ? n_rows - row : 4;
    long last_col = n_cols - col < 4 ? n_cols - col : 4;
    for (int i = 0; i < 4; i++) {
        if (i >= last_row) break;
        transform_output(half + 6 * i, 1, line, 1);
        for (int j = 0; j < 4; j++)
            if (j < last_col) store(pixels + ((row + i) * n_cols + col + j) * n_channels, line[j]);
    }
}

/* A few tiles, at most N_TILES, times a matrix: n_groups * LANES inputs, LANES * width outputs. */
INLINE void multiply(const float *v, long v_stride, const float *u, long u_stride, float *m,
                     long m_stride, long n_groups, const int width, const int n_tiles) {
    vec sums[N_TILES][N_VECTORS];
    for (int t = 0; t < n_tiles; t++)
        for (int w = 0; w < width; w++) sums[t][w] = zeros();
    for (long group = 0; group < n_groups; group++) {
        const float *tiles = v + group * v_stride;
#pragma GCC unroll 4
        for (int k = 0; k < LANES; k++) {
            vec weights[N_VECTORS];
            for (int w = 0; w < width; w++) weights[w] = load(u + LANES * w);
            u += u_stride;
            for (int t = 0; t < n_tiles; t++)
                for (int w = 0; w < width; w++) sums[t][w] += tiles[t * LANES + k] * weights[w];
        }
    }
    for (int t = 0; t < n_tiles; t++)
        for (int w = 0; w < width; w++) store(m + w * m_stride + t * LANES, sums[t][w]);
}

/* All tiles of one position times LANES * width outputs; what is left over as a third, or more. */
INLINE void multiply_tiles(const float *v, const float *u, long u_stride, float *m, long row,
                           long n_groups, long n_tiles, const int width) {
    long t = 0;
    for (; t + N_TILES <= n_tiles; t += N_TILES)
        multiply(v + t * LANES, row, u, u_stride, m + t * LANES, row, n_groups, width, N_TILES);
    long left = n_tiles - t;
    if (left > 2 * N_TILES / 3)
        multiply(v + t * LANES, row, u, u_stride, m + t * LANES, row, n_groups, width, N_TILES);
    else if (left > N_TILES / 3)
        multiply(v + t * LANES, row, u, u_stride, m + t * LANES, row, n_groups, width,
                 2 * N_TILES / 3);
    else if (left)
        multiply(v + t * LANES, row, u, u_stride, m + t * LANES, row, n_groups, width, N_TILES / 3);
}

static void multiply_positions(const float *v, const float *u, float *m, long n_tiles, long n_in,
                               long n_out, long block) {
    long groups_in = n_in / LANES, row = block * LANES;
    for (long p = 0; p < POSITIONS; p++) {
        const float *vp = v + p * STRIDE(n_in, block), *up = u + p * n_in * n_out;
        float *mp = m + p * STRIDE(n_out, block);
        for (long out = 0; out < n_out;) {
            long begin = out / PANEL * PANEL, panel = n_out - begin < PANEL ? n_out - begin : PANEL;
            int width = begin + panel - out >= N_VECTORS * LANES ? N_VECTORS : 1;
            const float *weights = up + begin * n_in + (out - begin);
            float *to = mp + out / LANES * row;
            if (width == N_VECTORS)
                multiply_tiles(vp, weights, panel, to, row, groups_in, n_tiles, N_VECTORS);
            else
                multiply_tiles(vp, weights, panel, to, row, groups_in, n_tiles, 1);
            out += width * LANES;
        }
    }
}

/* Floats of scratch that `convolve` needs. */
long convolve_scratch(long n_in, long n_out) {
    return POSITIONS * (STRIDE(n_in, BLOCK) + STRIDE(n_out, BLOCK));
}

static void read_features(Features in, long image, long n_rows, long n_cols, long row, long col,
                          float *to, long group_stride, long position_stride) {
    const float *pixels = in.data + image * n_rows * n_cols * in.n_channels;
    int inside = row >= 0 && col >= 0 && row + 6 <= n_rows && col + 6 <= n_cols;
    for (long c = 0; c < in.n_channels; c += LANES, to += group_stride) {
        const float *from = pixels + c;
        if (!in.scale) {
            if (inside)
                read_tile(from, n_rows, n_cols, in.n_channels, row, col, zeros(), zeros(), 0, 1,
                          to, position_stride);
            else
                read_tile(from, n_rows, n_cols, in.n_channels, row, col, zeros(), zeros(), 0, 0,
                          to, position_stride);
            continue;
        }
        vec scale = load(in.scale + image * in.n_channels + c);
        vec shift = load(in.shift + image * in.n_channels + c);
        if (inside)
            read_tile(from, n_rows, n_cols, in.n_channels, row, col, scale, shift, 1, 1, to,
                      position_stride);
        else
            read_tile(from, n_rows, n_cols, in.n_channels, row, col, scale, shift, 1, 0, to,
                      position_stride);
    }
}

static void convolve_features(Features a, Features b, long n, long n_rows, long n_cols, long n_out,
                              const float *u, float *out, float *scratch) {
    long n_in = a.n_channels + b.n_channels;
    long down = (n_rows + 3) / 4, across = (n_cols + 3) / 4, total = n * down * across;
    long n_blocks = (total + BLOCK - 1) / BLOCK;
    /* Blocks of equal size. */
    long block = ((total + n_blocks - 1) / n_blocks + N_TILES - 1) / N_TILES * N_TILES;
    long row = block * LANES;
    long in_stride = STRIDE(n_in, block), out_stride = STRIDE(n_out, block);
    float *v = scratch, *m = scratch + POSITIONS * in_stride;
    for (long begin = 0; begin < total; begin += block) {
        long here = total - begin < block ? total - begin : block;
        for (long t = 0; t < here; t++) {
            long image = (begin + t) / (down * across), place = (begin + t) % (down * across);
            long y = place / across * 4 - 1, x = place % across * 4 - 1;
            float *to = v + t * LANES;
            read_features(a, image, n_rows, n_cols, y, x, to, row, in_stride);
            if (b.n_channels)
                read_features(b, image, n_rows, n_cols, y, x, to + a.n_channels / LANES * row, row,
                              in_stride);
        }
        multiply_positions(v, u, m, here, n_in, n_out, block);
        for (long t = 0; t < here; t++) {
            long image = (begin + t) / (down * across), place = (begin + t) % (down * across);
            float *pixels = out + image * n_rows * n_cols * n_out;
            for (long c = 0; c < n_out; c += LANES)
                write_tile(m + c / LANES * row + t * LANES, out_stride, pixels + c, n_rows, n_cols,
                           n_out, place / across * 4, place % across * 4);
        }
    }
}
