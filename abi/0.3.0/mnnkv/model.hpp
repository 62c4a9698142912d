// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MODEL_HPP
#define MNNKV_MODEL_HPP
#include "../mnnkv.hpp"
#include "model.h"
namespace mnnkv {
namespace detail {
inline status of_model(mnnkv_status code) noexcept { return status(code, mnnkv_model_last_error); }
}
class compressor : public owner<mnnkv_compressor, mnnkv_compressor_destroy> {
public:
    status open(const char* path) noexcept {
        reset();
        return detail::of_model(mnnkv_compressor_open(path, MNNKV_ABI_VERSION, &handle_));
    }
    status create(const void* bytes, std::size_t len) noexcept {
        reset();
        return detail::of_model(mnnkv_compressor_create(bytes, len, MNNKV_ABI_VERSION, &handle_));
    }
    status info(mnnkv_compressor_info& out) const noexcept {
        return detail::get(out, [this](mnnkv_compressor_info* to) {
            return detail::of_model(mnnkv_compressor_get_info(handle_, to));
        });
    }
    status block_info(std::uint32_t layer, std::uint32_t block, mnnkv_compressor_block_info& out) const noexcept {
        return detail::get(out, [this, layer, block](mnnkv_compressor_block_info* to) {
            return detail::of_model(mnnkv_compressor_get_block_info(handle_, layer, block, to));
        });
    }
    template <class Text>
    status notes(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return detail::of_model(mnnkv_compressor_notes(handle_, to, cap, len));
        });
    }
    status new_len(std::uint32_t kv_len, std::uint32_t& len,
                   const mnnkv_compressor_options* options = nullptr) const noexcept {
        return detail::of_model(mnnkv_compressor_new_len(handle_, options, kv_len, &len));
    }
    status run(std::uint32_t layer, std::uint32_t dtype, std::uint32_t kv_heads, std::uint32_t kv_len, const void* key,
               const void* value, void* key_out, void* value_out, std::size_t cap_each, std::uint32_t& new_len,
               const mnnkv_compressor_options* options = nullptr) const noexcept {
        return detail::of_model(mnnkv_compressor_run(handle_, layer, options, dtype, kv_heads, kv_len, key, value,
                                                     key_out, value_out, cap_each, &new_len));
    }
    status run_caches(std::uint32_t first_layer, mnnkv_cache* caches, std::uint32_t n_layers,
                      const mnnkv_compressor_options* options = nullptr) const noexcept {
        std::uint32_t old_len = 0, new_len = 0;
        return detail::of_model(mnnkv_compressor_run_caches(handle_, first_layer, options, caches, n_layers, &old_len,
                                                            &new_len));
    }
};
class msmodelslim : public owner<mnnkv_msmodelslim, mnnkv_msmodelslim_destroy> {
public:
    status open(const char* path) noexcept {
        reset();
        return detail::of_model(mnnkv_msmodelslim_open(path, MNNKV_ABI_VERSION, &handle_));
    }
    template <class Text>
    static status check_json(const char* path, Text& text) {
        const auto check = [path](char* to, std::size_t cap, std::size_t* len) {
            return detail::of_model(mnnkv_msmodelslim_check_json(path, to, cap, len));
        };
        return detail::fill(text, check, 65536);
    }
    status info(mnnkv_msmodelslim_info& out) const noexcept {
        return detail::get(out, [this](mnnkv_msmodelslim_info* to) {
            return detail::of_model(mnnkv_msmodelslim_get_info(handle_, to));
        });
    }
    template <class Text>
    status layers_json(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return detail::of_model(mnnkv_msmodelslim_layers_json(handle_, to, cap, len));
        });
    }
    template <class Text>
    status name(std::uint32_t list, std::uint64_t index, Text& text) const {
        return detail::fill(text, [this, list, index](char* to, std::size_t cap, std::size_t* len) {
            return detail::of_model(mnnkv_msmodelslim_name(handle_, list, index, to, cap, len));
        });
    }
    status find(const char* name, std::uint64_t& linear) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_find(handle_, name, &linear));
    }
    status linear_info(std::uint64_t linear, mnnkv_msmodelslim_linear_info& out) const noexcept {
        return detail::get(out, [this, linear](mnnkv_msmodelslim_linear_info* to) {
            return detail::of_model(mnnkv_msmodelslim_get_linear_info(handle_, linear, to));
        });
    }
    status dequantize(std::uint64_t linear, std::uint64_t row_begin, std::uint64_t rows, std::uint32_t dtype, void* out,
                      std::size_t out_bytes) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_dequantize(handle_, linear, row_begin, rows, dtype, out, out_bytes));
    }
    status linear_w8a8(std::uint64_t linear, std::uint64_t row_begin, std::uint64_t rows, const float* x,
                       std::size_t tokens, float* y, std::size_t y_cap) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_linear_w8a8(handle_, linear, row_begin, rows, x, tokens, y, y_cap));
    }
    status norm(std::uint64_t norm, bool quantized, float* weight, float* bias, std::size_t cap,
                std::size_t& len) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_norm(handle_, norm, quantized ? 1 : 0, weight, bias, cap, &len));
    }
    status key_scales(std::uint64_t kv_layer, float* scale, float* offset, std::size_t cap,
                      std::size_t& len) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_kv_scales(handle_, kv_layer, 0, scale, offset, cap, &len));
    }
    status value_scales(std::uint64_t kv_layer, float* scale, float* offset, std::size_t cap,
                        std::size_t& len) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_kv_scales(handle_, kv_layer, 1, scale, offset, cap, &len));
    }
};
class msmodelslim_writer : public owner<mnnkv_msmodelslim_writer, mnnkv_msmodelslim_writer_destroy> {
public:
    status create(const char* path, const mnnkv_msmodelslim_writer_options* options = nullptr) noexcept {
        reset();
        return detail::of_model(mnnkv_msmodelslim_writer_create(path, options, MNNKV_ABI_VERSION, &handle_));
    }
    status tensor(const char* name, const char* tag, const char* dtype, const std::uint64_t* shape,
                  std::size_t rank) noexcept {
        return detail::of_model(mnnkv_msmodelslim_writer_tensor(handle_, name, tag, dtype, shape, rank));
    }
    status linear(const char* name, std::size_t n, std::size_t k) noexcept {
        return detail::of_model(mnnkv_msmodelslim_writer_linear(handle_, name, n, k));
    }
    status kv(const char* prefix, std::size_t channels) noexcept {
        return detail::of_model(mnnkv_msmodelslim_writer_kv(handle_, prefix, channels));
    }
    status append(const char* name, const void* data, std::size_t len) noexcept {
        return detail::of_model(mnnkv_msmodelslim_writer_append(handle_, name, data, len));
    }
    status append_rows(const char* name, const float* weights, std::size_t count) noexcept {
        return detail::of_model(mnnkv_msmodelslim_writer_append_rows(handle_, name, weights, count));
    }
    status append_kv(const char* prefix, const float* key_scale, const float* key_offset, const float* value_scale,
                     const float* value_offset, std::size_t channels) noexcept {
        return detail::of_model(mnnkv_msmodelslim_writer_append_kv(handle_, prefix, key_scale, key_offset, value_scale,
                                                                   value_offset, channels));
    }
    status finish() noexcept { return detail::of_model(mnnkv_msmodelslim_writer_finish(handle_)); }
};
inline mnnkv_sizing_options sizing_defaults() noexcept {
    mnnkv_sizing_options options = mnnkv_sizing_options();
    mnnkv_sizing_options_default(&options);
    return options;
}
class sizing : public owner<mnnkv_sizing, mnnkv_sizing_destroy> {
public:
    status create(const char* config_json, std::size_t len) noexcept {
        reset();
        return detail::of_model(mnnkv_sizing_create(config_json, len, MNNKV_ABI_VERSION, &handle_));
    }
    status info(mnnkv_sizing_info& out) const noexcept {
        return detail::get(out, [this](mnnkv_sizing_info* to) {
            return detail::of_model(mnnkv_sizing_get_info(handle_, to));
        });
    }
    status layer_info(std::uint32_t layer, mnnkv_sizing_layer_info& out) const noexcept {
        return detail::get(out, [this, layer](mnnkv_sizing_layer_info* to) {
            return detail::of_model(mnnkv_sizing_get_layer_info(handle_, layer, to));
        });
    }
    status per_token(std::uint64_t& bytes_per_token, std::uint64_t& bytes_per_late_token,
                     const mnnkv_sizing_options* options = nullptr) const noexcept {
        return detail::of_model(mnnkv_sizing_per_token(handle_, options, &bytes_per_token, &bytes_per_late_token));
    }
    status bytes(std::uint64_t tokens, mnnkv_sizing_total& out,
                 const mnnkv_sizing_options* options = nullptr) const noexcept {
        return detail::get(out, [this, options, tokens](mnnkv_sizing_total* to) {
            return detail::of_model(mnnkv_sizing_bytes(handle_, options, tokens, to));
        });
    }
    status longest(std::uint64_t budget, std::uint64_t& tokens, std::uint64_t& bytes,
                   const mnnkv_sizing_options* options = nullptr) const noexcept {
        return detail::of_model(mnnkv_sizing_longest(handle_, options, budget, &tokens, &bytes));
    }
    template <class Text>
    status notes(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return detail::of_model(mnnkv_sizing_notes(handle_, to, cap, len));
        });
    }
    template <class Text>
    status report_json(Text& text, const std::uint64_t* contexts, std::size_t n, std::uint64_t budget = 0,
                       const mnnkv_sizing_options* options = nullptr) const {
        return detail::fill(text, [this, options, contexts, n, budget](char* to, std::size_t cap, std::size_t* len) {
            return detail::of_model(mnnkv_sizing_report_json(handle_, options, contexts, n, budget, to, cap, len));
        });
    }
};
}
#endif
