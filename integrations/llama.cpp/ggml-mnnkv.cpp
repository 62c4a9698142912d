// A backend of ggml that computes GGML_OP_FLASH_ATTN_EXT of few query rows, those of a decode, with mnnkv_rows_attend.
//
// It has no memory of its own: like ggml's BLAS backend it is an accelerator on the CPU's buffers, and the scheduler of
// llama.cpp gives it the nodes that supports_op accepts. README.md says how to build and load it. A build is for the version of
// ggml's backend API (GGML_BACKEND_API_VERSION) that its headers have; ggml refuses one of another.

#define GGML_BACKEND_DL
#include <ggml-backend-impl.h>
#include <ggml.h>
#include <mnnkv/llama.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

namespace {

constexpr int64_t most_rows = 16;
// More parts than threads, so that a thread that loses its core for a moment does not delay the others.
constexpr int parts_per_thread = 4;
constexpr int most_parts = 64;

struct context {
    int threads = 1;
    std::vector<mnnkv_rows> streams;
    std::vector<float> slopes;
    std::vector<float> scratch;
};

uint32_t row_type(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16: return MNNKV_ROWS_F16;
        case GGML_TYPE_Q8_0: return MNNKV_ROWS_Q8_0;
        case GGML_TYPE_Q4_0: return MNNKV_ROWS_Q4_0;
        default: return 0;
    }
}

const void * at(const ggml_tensor * tensor, int64_t stream) {
    return static_cast<const char *>(tensor->data) + static_cast<size_t>(stream) * tensor->nb[3];
}

// The factors of the mask with ALiBi, as ggml_flash_attn_ext defines them.
void set_slopes(std::vector<float> & slopes, float max_bias) {
    const auto power_of_two = static_cast<float>(1u << static_cast<unsigned>(std::floor(std::log2(slopes.size()))));
    for (size_t head = 0; head < slopes.size(); head++) {
        const auto h = static_cast<float>(head);
        slopes[head] = h < power_of_two ? std::pow(2.0f, -max_bias / power_of_two * (h + 1))
                                        : std::pow(2.0f, -max_bias / 2 / power_of_two * (2 * (h - power_of_two) + 1));
    }
}

// One line on the first step of the process, so that a user sees that the backend computes.
void announce(const ggml_tensor * node) {
    static std::once_flag once;
    std::call_once(once, [node] {
        const ggml_tensor *k = node->src[1], *v = node->src[2];
        std::fprintf(stderr, "ggml-mnnkv: attends in steps of up to %d tokens (K %s, V %s, head_dim %d)\n", static_cast<int>(most_rows),
                     ggml_type_name(k->type), ggml_type_name(v->type), static_cast<int>(k->ne[0]));
    });
}

// The node as a step of mnnkv for each of its streams.
void describe(const ggml_tensor * node, context & own) {
    const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3], *sinks = node->src[4];
    float params[3];  // scale, max_bias, logit_softcap
    std::memcpy(params, node->op_params, sizeof params);

    mnnkv_rows rows = {};
    rows.struct_size = sizeof rows;
    rows.heads = static_cast<uint32_t>(q->ne[2]);
    rows.rows = static_cast<uint32_t>(q->ne[1]);
    rows.kv_heads = static_cast<uint32_t>(k->ne[2]);
    rows.tokens = static_cast<uint32_t>(k->ne[1]);
    rows.key_type = row_type(k->type);
    rows.value_type = row_type(v->type);
    rows.key_dim = static_cast<uint32_t>(k->ne[0]);
    rows.value_dim = static_cast<uint32_t>(v->ne[0]);
    rows.scale = params[0];
    rows.soft_cap = params[2];
    rows.key_token_stride = k->nb[1];
    rows.key_head_stride = k->nb[2];
    rows.value_token_stride = v->nb[1];
    rows.value_head_stride = v->nb[2];
    rows.query_row_stride = q->nb[1];
    rows.query_head_stride = q->nb[2];
    // The result is permuted: [row][head][dim].
    rows.output_head_stride = node->nb[1];
    rows.output_row_stride = node->nb[2];
    own.slopes.resize(params[1] > 0 ? rows.heads : 0);
    if (!own.slopes.empty()) {
        set_slopes(own.slopes, params[1]);
        rows.slopes = own.slopes.data();
    }
    if (sinks != nullptr) {
        rows.sinks = static_cast<const float *>(sinks->data);
    }
    if (mask != nullptr) {
        rows.mask_row_stride = mask->nb[1] / sizeof(ggml_fp16_t);
    }
    own.streams.assign(static_cast<size_t>(q->ne[3]), rows);
    for (int64_t s = 0; s < q->ne[3]; s++) {
        mnnkv_rows & stream = own.streams[static_cast<size_t>(s)];
        stream.key = at(k, s);
        stream.value = at(v, s);
        stream.queries = static_cast<const float *>(at(q, s));
        stream.output = static_cast<float *>(const_cast<void *>(at(node, s)));
        stream.mask = mask == nullptr ? nullptr : at(mask, s % mask->ne[3]);
    }
}

// All streams in as many parts, on OpenMP's threads: ggml's CPU backend has the same team, which waits between the two, so that
// no thread is woken and none competes. Without OpenMP the calling thread has all parts.
mnnkv_status attend(context & own) {
    const int streams = static_cast<int>(own.streams.size());
    const int wanted = (own.threads * parts_per_thread + streams - 1) / streams;
    const int parts = own.threads == 1 ? 1 : std::min(wanted, most_parts);
    uint64_t bytes = 0;
    if (const mnnkv_status status = mnnkv_rows_scratch(own.streams.data(), static_cast<uint32_t>(parts), &bytes)) {
        return status;
    }
    const size_t len = bytes / sizeof(float);
    own.scratch.resize(std::max(own.scratch.size(), len * own.streams.size()));
    std::atomic<mnnkv_status> failure{MNNKV_OK};
#pragma omp parallel num_threads(own.threads)
    {
#pragma omp for schedule(dynamic)
        for (int i = 0; i < parts * streams; i++) {
            const auto part = static_cast<uint32_t>(i % parts);
            const auto stream = static_cast<size_t>(i / parts);
            float * scratch = own.scratch.data() + stream * len;
            if (const mnnkv_status status = mnnkv_rows_attend(&own.streams[stream], part, static_cast<uint32_t>(parts), scratch, bytes)) {
                failure = status;
            }
        }
#pragma omp for schedule(static)
        for (int i = 0; i < parts * streams; i++) {
            const auto part = static_cast<uint32_t>(i % parts);
            const auto stream = static_cast<size_t>(i / parts);
            const float * scratch = own.scratch.data() + stream * len;
            if (failure != MNNKV_OK) {
                continue;
            }
            if (const mnnkv_status status = mnnkv_rows_merge(&own.streams[stream], part, static_cast<uint32_t>(parts), scratch, bytes)) {
                failure = status;
            }
        }
    }
    return failure;
}

// Whether the kernels support a node; the CPU backend computes all others.
bool takes(const ggml_tensor * node) {
    static const bool has_kernels = mnnkv_rows_supported() != 0;
    switch (node->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true;  // nothing to compute
        case GGML_OP_FLASH_ATTN_EXT: break;
        default: return false;
    }
    if (!has_kernels) {
        return false;
    }
    const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3], *sinks = node->src[4];
    const auto is_cache = [](const ggml_tensor * t) {
        return row_type(t->type) != 0 && t->ne[0] % 32 == 0 && t->ne[0] <= 1024 && t->nb[0] == ggml_type_size(t->type);
    };
    const auto is_float = [](const ggml_tensor * t) {
        return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->nb[1] % sizeof(float) == 0 &&
               t->nb[2] % sizeof(float) == 0;
    };
    const bool has_rows = q->ne[1] > 0 && q->ne[3] > 0 && k->ne[1] > 0;
    const bool same_shape = k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3];
    return has_rows && q->ne[1] <= most_rows && is_cache(k) && is_cache(v) && is_float(q) && is_float(node) && same_shape &&
           q->ne[2] % k->ne[2] == 0 &&
           (mask == nullptr || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t) && mask->ne[0] >= k->ne[1] &&
                                mask->ne[1] >= q->ne[1] && mask->ne[2] == 1)) &&
           (sinks == nullptr || (sinks->type == GGML_TYPE_F32 && ggml_is_contiguous(sinks)));
}

// The backend.

// Since the second API a graph may have nodes that are not to be computed.
bool is_wanted([[maybe_unused]] const ggml_tensor * node) {
#if GGML_BACKEND_API_VERSION >= 2
    return (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
#else
    return true;
#endif
}

const char * backend_name(ggml_backend_t) { return "MNNKV"; }

void backend_free(ggml_backend_t backend) {
    delete static_cast<context *>(backend->context);
    delete backend;
}

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    context & own = *static_cast<context *>(backend->context);
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        // Between the nodes of a split there may be views, which compute nothing.
        if (node->op != GGML_OP_FLASH_ATTN_EXT || !is_wanted(node)) {
            continue;
        }
        announce(node);
        mnnkv_status status = MNNKV_OUT_OF_MEMORY;
        try {
            describe(node, own);
            status = attend(own);
        } catch (const std::bad_alloc &) {
        }
        if (status != MNNKV_OK) {
            std::fprintf(stderr, "ggml-mnnkv: %s: status %d of mnnkv.h\n", node->name, static_cast<int>(status));
            return status == MNNKV_OUT_OF_MEMORY ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

void set_threads(ggml_backend_t backend, int threads) { static_cast<context *>(backend->context)->threads = std::max(threads, 1); }

// The device.

const char * device_name(ggml_backend_dev_t) { return "MNNKV"; }

const char * device_description(ggml_backend_dev_t) { return "attention of decodes by mnn-kv"; }

void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; }

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

// With the device's layers on the CPU's buffers weights stay in the mapped file. Older headers have no such field.
template <typename Caps>
auto maps(Caps & caps, int) -> decltype(caps.mmap_support, void()) {
    caps.mmap_support = true;
}
template <typename Caps>
void maps(Caps &, long) {}

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    *props = {};
    props->name = device_name(device);
    props->description = device_description(device);
    props->type = device_type(device);
    props->caps.buffer_from_host_ptr = true;
    maps(props->caps, 0);
}

ggml_backend_t device_backend(ggml_backend_dev_t device, const char *) {
    static ggml_guid guid = {0x6d, 0x6e, 0x6e, 0x6b, 0x76, 0x2d, 0x61, 0x74, 0x74, 0x65, 0x6e, 0x64, 0x2d, 0x72, 0x6f, 0x77};
    ggml_backend_i functions = {};
    functions.get_name = backend_name;
    functions.free = backend_free;
    functions.graph_compute = backend_compute;
    return new ggml_backend{&guid, functions, device, new context};
}

ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); }

ggml_backend_buffer_t device_buffer_of(ggml_backend_dev_t, void * memory, size_t size, size_t) {
    return ggml_backend_cpu_buffer_from_ptr(memory, size);
}

bool device_takes(ggml_backend_dev_t, const ggml_tensor * node) { return takes(node); }

bool device_reads(ggml_backend_dev_t, ggml_backend_buffer_type_t buffers) { return ggml_backend_buft_is_host(buffers); }

// The registry.

const char * registry_name(ggml_backend_reg_t) { return "MNNKV"; }

size_t registry_devices(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, size_t) {
    static ggml_backend_device device = [registry] {
        ggml_backend_device_i functions = {};
        functions.get_name = device_name;
        functions.get_description = device_description;
        functions.get_memory = device_memory;
        functions.get_type = device_type;
        functions.get_props = device_props;
        functions.init_backend = device_backend;
        functions.get_buffer_type = device_buffers;
        functions.buffer_from_host_ptr = device_buffer_of;
        functions.supports_op = device_takes;
        functions.supports_buft = device_reads;
        return ggml_backend_device{functions, registry, nullptr};
    }();
    return &device;
}

void * registry_function(ggml_backend_reg_t, const char * name) {
    const bool is_known = std::strcmp(name, "ggml_backend_set_n_threads") == 0;
    return is_known ? reinterpret_cast<void *>(set_threads) : nullptr;
}

ggml_backend_reg_t registry() {
    static ggml_backend_reg registry = {
        GGML_BACKEND_API_VERSION,
        {registry_name, registry_devices, registry_device, registry_function},
        nullptr,
    };
    return &registry;
}

// ggml does not load a backend whose score is 0: this one on a CPU that has no kernels here.
int score() { return mnnkv_rows_supported() != 0 ? 1 : 0; }

}  // namespace

GGML_BACKEND_DL_IMPL(registry)
GGML_BACKEND_DL_SCORE_IMPL(score)
