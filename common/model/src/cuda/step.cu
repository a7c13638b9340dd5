// The drafter's optimizer and the scores of its loss: each reads and writes its tensors as few times as can be.

typedef unsigned short bf16;
#define INFINITY __int_as_float(0x7f800000)

__device__ inline float widen(bf16 x) { return __uint_as_float((unsigned)x << 16); }

// Rounds to the nearest, ties to even.
__device__ inline bf16 narrow(float x) {
    if (isnan(x)) return 0x7fff;
    const unsigned bits = __float_as_uint(x);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// One AdamW step (decoupled decay) over float32 masters, on the gradient's sum divided by `denominator` and clipped to the
// global norm `max_norm`. `norm` is that of the undivided gradient; when it is not finite nothing changes but the gradient,
// which is forgotten in any case. `weights` are the masters rounded, or null. `correction2` is 1 / sqrt(1 - beta2^t).
extern "C" __global__ void adamw(float* master, float* first, float* second, float* gradient, bf16* weights,
                                 const float* norm, unsigned long long count, float denominator, float max_norm,
                                 float step_size, float correction2, float kept, float beta1, float beta2, float epsilon) {
    const unsigned long long index = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const float mean_norm = *norm / denominator;
    const float raw = gradient[index];
    gradient[index] = 0.0f;
    if (!isfinite(mean_norm)) return;
    const float g = raw * (fminf(max_norm / (mean_norm + 1e-6f), 1.0f) / denominator);
    const float m = first[index] + (g - first[index]) * (1.0f - beta1);
    const float v = second[index] * beta2 + g * g * (1.0f - beta2);
    first[index] = m;
    second[index] = v;
    const float w = master[index] * kept - step_size * m / (sqrtf(v) * correction2 + epsilon);
    master[index] = w;
    if (weights) weights[index] = narrow(w);
}

struct Best {
    float value;
    int place;
};

// The larger one; of equals the first.
__device__ inline Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.place < a.place) ? b : a;
}

// Logits [rows, V] in place to softmax minus one-hot of the label, with the loss of each row and whether its first largest
// logit is the label's. One block a row; V is a multiple of 8, rows start at 16 bytes.
extern "C" __global__ void score(bf16* logits, const long long* labels, float* nll, float* correct, int vocabulary) {
    __shared__ Best bests[32];
    __shared__ float sums[32];
    bf16* row = logits + (unsigned long long)blockIdx.x * vocabulary;
    uint4* vectors = (uint4*)row;
    const int label = (int)labels[blockIdx.x];
    const float label_logit = widen(row[label]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;

    Best best = {-INFINITY, 0x7fffffff};
    float sum = 0.0f; // of exp(logit - best.value)
    for (int at = threadIdx.x; at < vocabulary / 8; at += blockDim.x) {
        const uint4 loaded = vectors[at];
        const bf16* lanes = (const bf16*)&loaded;
        Best here = {widen(lanes[0]), 8 * at};
        for (int i = 1; i < 8; i++) here = better(here, Best{widen(lanes[i]), 8 * at + i});
        if (here.value > best.value) {
            sum *= __expf(best.value - here.value);
            best = here;
        }
        for (int i = 0; i < 8; i++) sum += __expf(widen(lanes[i]) - best.value);
    }
    const float own = best.value;
    for (int step = 16; step; step /= 2) {
        Best other = {__shfl_xor_sync(0xffffffffu, best.value, step), __shfl_xor_sync(0xffffffffu, best.place, step)};
        best = better(best, other);
    }
    if (lane == 0) bests[warp] = best;
    __syncthreads();
    for (int i = 0; i < warps; i++) best = better(best, bests[i]);
    if (own != best.value) sum *= __expf(own - best.value);
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < warps; i++) sum += sums[i];

    const float normalizer = best.value + logf(sum);
    if (threadIdx.x == 0) {
        nll[blockIdx.x] = normalizer - label_logit;
        correct[blockIdx.x] = best.place == label ? 1.0f : 0.0f;
    }
    for (int at = threadIdx.x; at < vocabulary / 8; at += blockDim.x) {
        uint4 loaded = vectors[at];
        bf16* lanes = (bf16*)&loaded;
        for (int i = 0; i < 8; i++) {
            const float probability = __expf(widen(lanes[i]) - normalizer);
            lanes[i] = narrow(probability - (8 * at + i == label ? 1.0f : 0.0f));
        }
        vectors[at] = loaded;
    }
}
