/* Instance norm, ReLU, pooling and upsampling. */

/* What makes instance norm of each image and channel: scale * x + shift, mean and scale. */
static void find_statistics(const float *x, long n, long n_rows, long n_cols, long n_channels,
                            float *scale, float *shift) {
    float count = (float)(n_rows * n_cols);
    for (long i = 0; i < n; i++, x += n_rows * n_cols * n_channels)
        for (long c = 0; c < n_channels; c += LANES) {
            /* Sums of differences from the first pixel, row by row: no digits cancel. */
            vec origin = load(x + c), sum = zeros(), squares = zeros();
            for (long y = 0; y < n_rows; y++) {
                vec line = zeros(), line_squares = zeros();
                const float *from = x + y * n_cols * n_channels + c;
                for (long k = 0; k < n_cols; k++, from += n_channels) {
                    vec value = load(from) - origin;
                    line += value;
                    line_squares += value * value;
                }
                sum += line;
                squares += line_squares;
            }
            vec mean = sum / count, variance = squares / count - mean * mean;
            float *s = scale + i * n_channels + c, *t = shift + i * n_channels + c;
            for (int k = 0; k < LANES; k++) {
                s[k] = 1.0f / sqrtf((variance[k] > 0 ? variance[k] : 0) + 1e-5f);
                t[k] = -(mean[k] + origin[k]) * s[k];
            }
        }
}

/* Instance norm and ReLU, with 2x2 max pooling where `pools`: a last odd line is dropped. */
static void normalize(const float *x, float *out, const float *scale, const float *shift, long n,
                      long n_rows, long n_cols, long n_channels, int pools) {
    long step = pools ? 2 : 1, line = n_cols * n_channels;
    for (long i = 0; i < n; i++, scale += n_channels, shift += n_channels)
        for (long y = 0; y < n_rows / step; y++)
            for (long k = 0; k < n_cols / step; k++) {
                const float *from = x + (i * n_rows + y * step) * line + k * step * n_channels;
                for (long c = 0; c < n_channels; c += LANES, from += LANES, out += LANES) {
                    vec value = load(from);
                    if (pools)
                        value = larger(larger(value, load(from + n_channels)),
                                       larger(load(from + line), load(from + line + n_channels)));
                    store(out, adapt(value, load(scale + c), load(shift + c), 1));
                }
            }
}

/* Bilinear upsampling to a given size, corners not aligned. */
static void upsample(const float *x, float *out, float *line, long n, long n_rows, long n_cols,
                     long to_rows, long to_cols, long n_channels) {
    float down = (float)n_rows / (float)to_rows, across = (float)n_cols / (float)to_cols;
    for (long i = 0; i < n; i++, x += n_rows * n_cols * n_channels)
        for (long y = 0; y < to_rows; y++) {
            float at = ((float)y + 0.5f) * down - 0.5f;
            at = at < 0 ? 0 : at;
            long first = (long)at, second = first + 1 < n_rows ? first + 1 : first;
            float weight = at - (float)first;
            const float *a = x + first * n_cols * n_channels, *b = x + second * n_cols * n_channels;
            for (long k = 0; k < n_cols * n_channels; k += LANES)
                store(line + k, (1 - weight) * load(a + k) + weight * load(b + k));
            for (long k = 0; k < to_cols; k++) {
                float where = ((float)k + 0.5f) * across - 0.5f;
                where = where < 0 ? 0 : where;
                long left = (long)where, right = left + 1 < n_cols ? left + 1 : left;
                float share = where - (float)left;
                const float *l = line + left * n_channels, *r = line + right * n_channels;
                for (long c = 0; c < n_channels; c += LANES, out += LANES)
                    store(out, (1 - share) * load(l + c) + share * load(r + c));
            }
        }
}

/* Instance norm, ReLU and, where `pools`, pooling; keeps what the backward pass needs. */
void normalize_forward(const float *x, float *out, float *scale, float *shift, long n, long n_rows,
                       long n_cols, long n_channels, long pools) {
    find_statistics(x, n, n_rows, n_cols, n_channels, scale, shift);
    normalize(x, out, scale, shift, n, n_rows, n_cols, n_channels, (int)pools);
}

/* Gradient of one window of x: that of its largest pixel, the first one where several are equal,
beside what instance norm gives every pixel, slope * x + offset. */
INLINE void spread(const float *x, float *to, long n_channels, long line, vec own, vec slope,
                   vec offset, const int pools) {
    long place[4] = {0, n_channels, line, line + n_channels};
    vec value[4], none = zeros();
    if (!pools) {
        store(to, slope * load(x) + offset + own);
        return;
    }
    for (int q = 0; q < 4; q++) value[q] = load(x + place[q]);
    vec top = larger(larger(value[0], value[1]), larger(value[2], value[3]));
    for (int q = 0; q < 4; q++) {
        store(to + place[q], slope * value[q] + offset + pick(value[q] == top, own, none));
        own = pick(value[q] == top, none, own);
    }
}

/* Gradient of x, from that of `normalize_forward`'s output.

Only pixels that became outputs have a gradient of their own, and their normalized values are the
outputs: both sums of instance norm's backward pass run over outputs. */
void normalize_backward(const float *gradient, const float *out, const float *x, const float *scale,
                        const float *shift, float *to, long n, long n_rows, long n_cols,
                        long n_channels, long pools) {
    long step = pools ? 2 : 1, line = n_cols * n_channels;
    long out_rows = n_rows / step, out_cols = n_cols / step, out_line = out_cols * n_channels;
    long out_size = out_rows * out_line;
    float count = (float)(n_rows * n_cols);
    for (long i = 0; i < n; i++, x += n_rows * line, to += n_rows * line, out += out_size,
              gradient += out_size, scale += n_channels, shift += n_channels)
        for (long c = 0; c < n_channels; c += LANES) {
            vec sum = zeros(), along = zeros(), none = zeros();
            for (long y = 0; y < out_rows; y++) {
                vec line_sum = zeros(), line_along = zeros();
                for (long at = y * out_line + c; at < (y + 1) * out_line; at += n_channels) {
                    vec value = load(out + at), change = load(gradient + at);
                    line_sum += pick(value > none, change, none);
                    line_along += value * change;
                }
                sum += line_sum;
                along += line_along;
            }
            /* (g - mean(g) - y * mean(g * y)) * s with y = s * x + t */
            vec s = load(scale + c), t = load(shift + c), slope = -(along / count) * s * s;
            vec offset = -(sum / count) * s - (along / count) * s * t;
            for (long y = 0; y < n_rows; y++) {
                int is_rest = y >= out_rows * step;
                for (long k = is_rest ? 0 : out_cols * step; k < n_cols; k++) {
                    long at = y * line + k * n_channels + c;
                    store(to + at, slope * load(x + at) + offset);
                }
                if (is_rest || y % step) continue;
                for (long k = 0; k < out_cols; k++) {
                    long at = y / step * out_line + k * n_channels + c;
                    long pixel = y * line + k * step * n_channels + c;
                    vec own = pick(load(out + at) > none, load(gradient + at), none) * s;
                    if (pools)
                        spread(x + pixel, to + pixel, n_channels, line, own, slope, offset, 1);
                    else
                        spread(x + pixel, to + pixel, n_channels, line, own, slope, offset, 0);
                }
            }
        }
}
