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
// which is forgotten in any case. `weights` are the masters rounded, or null. `correction2` is 1 / sqrt(1 - beta2^t), `new1`
// and `new2` are 1 - beta1 and 1 - beta2. Four weights a thread.
extern "C" __global__ void adamw(float4* master, float4* first, float4* second, float4* gradient, ushort4* weights,
                                 const float* norm, unsigned long long count, float denominator, float max_norm,
                                 float step_size, float correction2, float kept, float new1, float beta2, float new2,
                                 float epsilon) {
    const unsigned long long index = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * index >= count) return;
    const int lanes = count - 4 * index < 4 ? (int)(count - 4 * index) : 4;
    const float mean_norm = *norm / denominator;
    const bool finite = isfinite(mean_norm);
    const float scale = fminf(max_norm / (mean_norm + 1e-6f), 1.0f) / denominator;
    float* const at[4] = {(float*)(master + index), (float*)(first + index), (float*)(second + index),
                          (float*)(gradient + index)};
    __align__(16) float w[4], m[4], v[4], g[4];
    if (lanes == 4) {
        *(float4*)w = master[index];
        *(float4*)m = first[index];
        *(float4*)v = second[index];
        *(float4*)g = gradient[index];
    } else {
        for (int i = 0; i < lanes; i++) w[i] = at[0][i], m[i] = at[1][i], v[i] = at[2][i], g[i] = at[3][i];
    }
    __align__(8) bf16 rounded[4];
    for (int i = 0; i < 4; i++) {
        if (finite) {
            const float mean = g[i] * scale;
            m[i] += (mean - m[i]) * new1;
            v[i] = v[i] * beta2 + mean * mean * new2;
            w[i] = w[i] * kept - step_size * m[i] / (sqrtf(v[i]) * correction2 + epsilon);
        }
        g[i] = 0.0f;
        rounded[i] = narrow(w[i]);
    }
    if (lanes == 4) {
        master[index] = *(float4*)w;
        first[index] = *(float4*)m;
        second[index] = *(float4*)v;
        gradient[index] = *(float4*)g;
        if (weights) weights[index] = *(ushort4*)rounded;
        return;
    }
    for (int i = 0; i < lanes; i++) {
        at[0][i] = w[i], at[1][i] = m[i], at[2][i] = v[i], at[3][i] = g[i];
        if (weights) ((bf16*)(weights + index))[i] = rounded[i];
    }
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
