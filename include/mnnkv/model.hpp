// mnn-kv for C++11 and later: the handles of mnnkv/model.h, which is the manual. Programs link libmnnkv_model and, for
// mnnkv::status, libmnnkv: CMake's target mnnkv::model and pkg-config's mnnkv_model name both.

#ifndef MNNKV_MODEL_HPP
#define MNNKV_MODEL_HPP

#include "../mnnkv.hpp"
#include "model.h"

namespace mnnkv {

namespace detail {

/// A status whose text is that of libmnnkv_model.
inline status of_model(mnnkv_status code) noexcept { return status(code, mnnkv_model_last_error); }

}  // namespace detail

/// Owns a mnnkv_compressor. Any number of threads may use it at once, on different caches.
class compressor : public owner<mnnkv_compressor, mnnkv_compressor_destroy> {
public:
    /// Reads a weights file, destroying what was held before. On failure it holds nothing.
    status open(const char* path) noexcept {
        reset();
        return detail::of_model(mnnkv_compressor_open(path, MNNKV_ABI_VERSION, &handle_));
    }

    /// As open, of a file in memory.
    status create(const void* bytes, std::size_t len) noexcept {
        reset();
        return detail::of_model(mnnkv_compressor_create(bytes, len, MNNKV_ABI_VERSION, &handle_));
    }

    status info(mnnkv_compressor_info& out) const noexcept {
        return detail::get(out, [this](mnnkv_compressor_info* to) {
            return detail::of_model(mnnkv_compressor_get_info(handle_, to));
        });
    }

    status new_len(std::uint32_t kv_len, std::uint32_t& len,
                   const mnnkv_compressor_options* options = nullptr) const noexcept {
        return detail::of_model(mnnkv_compressor_new_len(handle_, options, kv_len, &len));
    }

    /// Packed caches of neighbouring layers, in place: all or none. Their kv_len changes.
    status run_caches(std::uint32_t first_layer, mnnkv_cache* caches, std::uint32_t n_layers,
                      const mnnkv_compressor_options* options = nullptr) const noexcept {
        std::uint32_t old_len = 0, new_len = 0;
        return detail::of_model(mnnkv_compressor_run_caches(handle_, first_layer, options, caches, n_layers, &old_len,
                                                            &new_len));
    }
};

/// Owns a mnnkv_msmodelslim. Any number of threads may read it at once.
class msmodelslim : public owner<mnnkv_msmodelslim, mnnkv_msmodelslim_destroy> {
public:
    /// Opens a directory, closing the one held before. On failure it holds nothing.
    status open(const char* path) noexcept {
        reset();
        return detail::of_model(mnnkv_msmodelslim_open(path, MNNKV_ABI_VERSION, &handle_));
    }

    /// The report on any directory, into a std::string or its like, as session::report. One over 64 KiB, which has
    /// hundreds of findings, costs reading the directory twice.
    template <class Text>
    static status check_json(const char* path, Text& text) {
        const auto check = [path](char* to, std::size_t cap, std::size_t* len) {
            return detail::of_model(mnnkv_msmodelslim_check_json(path, to, cap, len));
        };
        return detail::fill(text, check, 65536);
    }

    status linear_info(const char* linear, mnnkv_msmodelslim_linear_info& out) const noexcept {
        return detail::get(out, [this, linear](mnnkv_msmodelslim_linear_info* to) {
            return detail::of_model(mnnkv_msmodelslim_get_linear_info(handle_, linear, to));
        });
    }

    status dequantize(const char* linear, std::uint64_t row_begin, std::uint64_t rows, std::uint32_t dtype, void* out,
                      std::size_t out_bytes) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_dequantize(handle_, linear, row_begin, rows, dtype, out, out_bytes));
    }

    status linear_w8a8(const char* linear, std::uint64_t row_begin, std::uint64_t rows, const float* x,
                       std::size_t tokens, float* y, std::size_t y_cap) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_linear_w8a8(handle_, linear, row_begin, rows, x, tokens, y, y_cap));
    }

    status norm(const char* norm, bool quantized, float* weight, float* bias, std::size_t cap,
                std::size_t& len) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_norm(handle_, norm, quantized ? 1 : 0, weight, bias, cap, &len));
    }

    status key_scales(const char* module, float* scale, float* offset, std::size_t cap,
                      std::size_t& len) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_kv_scales(handle_, module, 0, scale, offset, cap, &len));
    }

    status value_scales(const char* module, float* scale, float* offset, std::size_t cap,
                        std::size_t& len) const noexcept {
        return detail::of_model(mnnkv_msmodelslim_kv_scales(handle_, module, 1, scale, offset, cap, &len));
    }
};

/// The sizing options with their defaults.
inline mnnkv_sizing_options sizing_defaults() noexcept {
    mnnkv_sizing_options options = mnnkv_sizing_options();
    mnnkv_sizing_options_default(&options);
    return options;
}

/// Owns a mnnkv_sizing. Any number of threads may call it at once.
class sizing : public owner<mnnkv_sizing, mnnkv_sizing_destroy> {
public:
    /// Reads a config.json, destroying what was held before. On failure it holds nothing.
    status create(const char* config_json, std::size_t len) noexcept {
        reset();
        return detail::of_model(mnnkv_sizing_create(config_json, len, MNNKV_ABI_VERSION, &handle_));
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

    /// Into a std::string or its like, as session::report. budget 0: the report has no longest context.
    template <class Text>
    status report_json(Text& text, const std::uint64_t* contexts, std::size_t n, std::uint64_t budget = 0,
                       const mnnkv_sizing_options* options = nullptr) const {
        return detail::fill(text, [this, options, contexts, n, budget](char* to, std::size_t cap, std::size_t* len) {
            return detail::of_model(mnnkv_sizing_report_json(handle_, options, contexts, n, budget, to, cap, len));
        });
    }
};

}  // namespace mnnkv

#endif  // MNNKV_MODEL_HPP
