// mnnkv/session.hpp: mnnkv::session.

#ifndef MNNKV_SESSION_HPP
#define MNNKV_SESSION_HPP

#include "attend.h"
#include "base.hpp"
#include "memory.h"
#include "park.h"
#include "policy.h"
#include "report.h"
#include "scores.h"
#include "session.h"

namespace mnnkv {

/// Owns a mnnkv_session. reset() destroys the handle; reset_layer and reset_all are mnnkv_session_reset.
class session : public owner<mnnkv_session, mnnkv_session_destroy> {
public:
    /// mnnkv_session_create, after reset(). Sets struct_size and abi_version. Empty on failure.
    status create(mnnkv_session_options options) noexcept {
        reset();
        options.struct_size = static_cast<std::uint32_t>(sizeof options);
        options.abi_version = MNNKV_ABI_VERSION;
        return mnnkv_session_create(&options, &handle_);
    }

    /// The same with only a config. `attends` is 0: kv_quant has no effect, nor has a budget.
    status create(const char* config_json, std::size_t len, std::uint32_t layers, std::uint32_t lanes) noexcept {
        mnnkv_session_options options = mnnkv_session_options();
        options.layers = layers;
        options.lanes = lanes;
        options.config_json = config_json;
        options.config_len = len;
        return create(options);
    }

    /// mnnkv_session_reset
    status reset_layer(std::uint32_t layer) noexcept { return mnnkv_session_reset(handle_, layer); }

    /// mnnkv_session_reset, MNNKV_ALL_LAYERS
    status reset_all() noexcept { return mnnkv_session_reset(handle_, MNNKV_ALL_LAYERS); }

    /// mnnkv_session_begin, for hosts that attend themselves and hand over no sums
    status begin(std::uint32_t layer, mnnkv_cache& cache) noexcept {
        return mnnkv_session_begin(handle_, layer, &cache, nullptr);
    }

    /// mnnkv_session_begin; sets struct_size. `rows` of the step are the host's
    status begin(std::uint32_t layer, mnnkv_cache& cache, mnnkv_step& step) noexcept {
        step.struct_size = static_cast<std::uint32_t>(sizeof step);
        return mnnkv_session_begin(handle_, layer, &cache, &step);
    }

    /// mnnkv_session_block_sums
    status block_sums(std::uint32_t layer, std::uint32_t lane, const mnnkv_block_sums& sums) noexcept {
        return mnnkv_session_block_sums(handle_, layer, lane, &sums);
    }

    /// mnnkv_session_park
    status park(std::uint32_t layer, const mnnkv_park_options* options, mnnkv_cache& cache,
                mnnkv_parked* parked = nullptr) noexcept {
        return mnnkv_session_park(handle_, layer, options, &cache, parked);
    }

    /// mnnkv_session_interrupt
    status interrupt(bool interrupted = true) const noexcept {
        return mnnkv_session_interrupt(handle_, interrupted ? 1 : 0);
    }

    /// mnnkv_session_attend; sets struct_size
    status attend(std::uint32_t layer, std::uint32_t part, std::uint32_t parts, const mnnkv_cache& cache,
                  mnnkv_attend step) const noexcept {
        step.struct_size = static_cast<std::uint32_t>(sizeof step);
        return mnnkv_session_attend(handle_, layer, part, parts, &cache, &step);
    }

    /// mnnkv_session_trim
    status trim(std::uint64_t bytes, std::uint64_t* in_use = nullptr) noexcept {
        return mnnkv_session_trim(handle_, bytes, in_use);
    }

    /// mnnkv_session_end
    status end(std::uint32_t layer, std::uint32_t heads, std::uint32_t queries, mnnkv_cache& cache) noexcept {
        return mnnkv_session_end(handle_, layer, heads, queries, &cache);
    }

    /// mnnkv_session_abort
    status abort(std::uint32_t layer, mnnkv_cache& cache) noexcept {
        return mnnkv_session_abort(handle_, layer, &cache);
    }

    /// mnnkv_session_rewritten
    status rewritten(std::uint32_t layer, std::uint32_t begin, std::uint32_t count) noexcept {
        return mnnkv_session_rewritten(handle_, layer, begin, count);
    }

    /// mnnkv_session_keep
    status keep(std::uint32_t layer, const std::int32_t* logical_pairs, std::size_t n_pairs,
                mnnkv_cache& cache) noexcept {
        return mnnkv_session_keep(handle_, layer, logical_pairs, n_pairs, &cache);
    }

    /// mnnkv_session_pin
    status pin(std::uint32_t first, std::uint32_t count, bool on = true) noexcept {
        return mnnkv_session_pin(handle_, first, count, on ? 1 : 0);
    }

    /// mnnkv_session_lengths
    status lengths(std::uint32_t layer, std::uint32_t& logical, std::uint32_t& physical) const noexcept {
        return mnnkv_session_lengths(handle_, layer, &logical, &physical);
    }

    /// mnnkv_session_positions
    status positions(std::uint32_t layer, std::int32_t* pairs, std::size_t pairs_cap,
                     std::size_t& n_pairs) const noexcept {
        return mnnkv_session_positions(handle_, layer, pairs, pairs_cap, &n_pairs);
    }

    /// mnnkv_session_report into a std::string, or a type with resize() and contiguous chars. Empty on failure.
    template <class Text>
    status report(Text& text) const {
        return detail::fill(text, [this](char* to, std::size_t cap, std::size_t* len) {
            return mnnkv_session_report(handle_, to, cap, len);
        });
    }
};

}  // namespace mnnkv

#endif  // MNNKV_SESSION_HPP
