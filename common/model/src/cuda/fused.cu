// Element-wise parts of a decoder layer over bfloat16, eight elements (16 bytes) a load, arithmetic in float32.
//
// Each rounds to bfloat16 where the separate operations would, so results differ from theirs by the order of a sum and
// by a float32 ulp of exp at most. Blocks run from the end: what a product has written last, and what the next reads
// first, is then still in the cache. Compiled for one model: HIDDEN, INNER, HEAD_DIM, QUERY_HEADS, KEY_HEADS, HEAD_NORMS,
// EPS and NORM_THREADS are defined by whoever compiles it.

typedef unsigned int u32;

struct Eight {
    float of[8];
};

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float rounded(float x) { return low(pack(x, 0.0f)); }

__device__ __forceinline__ Eight unpack(uint4 packed) {
    return {low(packed.x), high(packed.x), low(packed.y), high(packed.y),
            low(packed.z), high(packed.z), low(packed.w), high(packed.w)};
}

__device__ __forceinline__ uint4 pack(const Eight& x) {
    return make_uint4(pack(x.of[0], x.of[1]), pack(x.of[2], x.of[3]), pack(x.of[4], x.of[5]), pack(x.of[6], x.of[7]));
}

__device__ __forceinline__ Eight join(float4 a, float4 b) { return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}; }

__device__ __forceinline__ float squares(const Eight& x) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += x.of[i] * x.of[i];
    return sum;
}

__device__ __forceinline__ Eight scaled(const Eight& x, float scale, const Eight& weight) {
    Eight y;
#pragma unroll
    for (int i = 0; i < 8; i++) y.of[i] = weight.of[i] * (x.of[i] * scale);
    return y;
}

// Sum over the block's threads, given to all of them.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float of_warp[32];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < NORM_THREADS / 32; warp++) sum += of_warp[warp];
    return sum;
}

// normed = x * rsqrt(mean(x^2) + EPS) * weight. One row [HIDDEN] a block.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
rms_norm(const uint4* x, const uint4* weight, uint4* normed) {
    const int vectors = HIDDEN / 8;
    const int shares = (vectors + NORM_THREADS - 1) / NORM_THREADS;
    const size_t row = (size_t)(gridDim.x - 1 - blockIdx.x) * vectors;
    Eight mine[shares];
    float total = 0.0f;
#pragma unroll
    for (int share = 0; share < shares; share++) {
        const int at = threadIdx.x + share * NORM_THREADS;
        if (at >= vectors) break;
        mine[share] = unpack(x[row + at]);
        total += squares(mine[share]);
    }
    const float scale = rsqrtf(block_sum(total) / HIDDEN + EPS);
#pragma unroll
    for (int share = 0; share < shares; share++) {
        const int at = threadIdx.x + share * NORM_THREADS;
        if (at >= vectors) break;
        normed[row + at] = pack(scaled(mine[share], scale, unpack(weight[at])));
    }
}

// Norms (HEAD_NORMS) and turns the query and key heads of qkv [T, QUERY_HEADS + 2 KEY_HEADS, HEAD_DIM] where they lie.
// cos and sin are [T, HEAD_DIM], their halves alike. A thread holds eight elements of a head's first half and the eight
// that turn with them; neighbouring lanes hold the rest of the head.
extern "C" __global__ void
turn_heads(uint4* qkv, const float4* cos, const float4* sin, const uint4* query_norm, const uint4* key_norm, u32 units) {
    const u32 lanes = HEAD_DIM / 16, turned = QUERY_HEADS + KEY_HEADS, heads = turned + KEY_HEADS;
    const u32 unit = (gridDim.x - 1 - blockIdx.x) * blockDim.x + threadIdx.x;
    const u32 present = __ballot_sync(0xffffffffu, unit < units);
    if (unit >= units) return;
    const u32 lane = unit % lanes, head = unit / lanes % turned, token = unit / (lanes * turned);
    const size_t at = ((size_t)token * heads + head) * (HEAD_DIM / 8) + lane;
    Eight first = unpack(qkv[at]), second = unpack(qkv[at + lanes]);
    if (HEAD_NORMS) {
        float total = squares(first) + squares(second);
#pragma unroll
        for (u32 step = lanes / 2; step > 0; step >>= 1) total += __shfl_xor_sync(present, total, step);
        const float scale = rsqrtf(total / HEAD_DIM + EPS);
        const uint4* weight = head < QUERY_HEADS ? query_norm : key_norm;
        first = unpack(pack(scaled(first, scale, unpack(weight[lane]))));
        second = unpack(pack(scaled(second, scale, unpack(weight[lane + lanes]))));
    }
    const size_t angle = (size_t)token * (HEAD_DIM / 4) + lane * 2;
    const Eight c = join(cos[angle], cos[angle + 1]), s = join(sin[angle], sin[angle + 1]);
    Eight turned_first, turned_second;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        turned_first.of[i] = __fadd_rn(__fmul_rn(first.of[i], c.of[i]), -__fmul_rn(second.of[i], s.of[i]));
        turned_second.of[i] = __fadd_rn(__fmul_rn(second.of[i], c.of[i]), __fmul_rn(first.of[i], s.of[i]));
    }
    qkv[at] = pack(turned_first);
    qkv[at + lanes] = pack(turned_second);
}

// inner = silu(gate) * up, all [T, INNER]; rows of gate and of up lie `stride` vectors apart.
extern "C" __global__ void swiglu(const uint4* gates, const uint4* ups, uint4* inner, u32 stride, u32 units) {
    const u32 vectors = INNER / 8;
    const u32 unit = (gridDim.x - 1 - blockIdx.x) * blockDim.x + threadIdx.x;
    if (unit >= units) return;
    const size_t at = (size_t)(unit / vectors) * stride + unit % vectors;
    const Eight gate = unpack(gates[at]), up = unpack(ups[at]);
    Eight product;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        product.of[i] = rounded(__fdividef(gate.of[i], 1.0f + __expf(-gate.of[i]))) * up.of[i];
    }
    inner[unit] = pack(product);
}
