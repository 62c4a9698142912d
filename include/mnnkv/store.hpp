// mnnkv/store.hpp: mnnkv::store, with MNNKV_EXPERIMENTAL.

#ifndef MNNKV_STORE_HPP
#define MNNKV_STORE_HPP

#include "base.hpp"
#include "store.h"

#ifdef MNNKV_EXPERIMENTAL

namespace mnnkv {

/// Owns a mnnkv_store.
class store : public owner<mnnkv_store, mnnkv_store_destroy> {
public:
    /// mnnkv_store_create, after reset(). Empty on failure.
    status create(const mnnkv_store_config* config = nullptr) noexcept {
        reset();
        return mnnkv_store_create(config, MNNKV_ABI_VERSION, &handle_);
    }

    /// mnnkv_store_submit
    status submit(std::uint32_t layer, const mnnkv_layout& layout, const void* key, const void* value,
                  std::uint32_t begin, std::uint32_t count, std::uint64_t* ticket = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_submit(handle_, layer, &layout, key, value, begin, count, ticket ? ticket : &unused);
    }

    /// mnnkv_store_commit
    status commit(std::uint32_t layer, const mnnkv_layout& layout, void* key, void* value,
                  std::uint64_t* released_bytes = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_commit(handle_, layer, &layout, key, value, released_bytes ? released_bytes : &unused);
    }

    /// mnnkv_store_restore
    status restore(std::uint32_t layer, const mnnkv_layout& layout, void* key, void* value,
                   std::uint64_t* restored_bytes = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_restore(handle_, layer, &layout, key, value, restored_bytes ? restored_bytes : &unused);
    }

    /// mnnkv_store_compacted
    status compacted(std::uint32_t layer, const std::int32_t* reserve_pairs, std::size_t n_pairs) noexcept {
        return mnnkv_store_compacted(handle_, layer, reserve_pairs, n_pairs);
    }

    /// mnnkv_store_stats
    status stats(mnnkv_store_statistics& out) const noexcept {
        return detail::get(out, [this](mnnkv_store_statistics* to) { return mnnkv_store_stats(handle_, to); });
    }
};

}  // namespace mnnkv

#endif  // MNNKV_EXPERIMENTAL

#endif  // MNNKV_STORE_HPP
