// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_STORE_HPP
#define MNNKV_STORE_HPP
#include "base.hpp"
#include "store.h"
#ifdef MNNKV_EXPERIMENTAL
namespace mnnkv {
class store : public owner<mnnkv_store, mnnkv_store_destroy> {
public:
    status create(const mnnkv_store_config* config = nullptr) noexcept {
        reset();
        return mnnkv_store_create(config, MNNKV_ABI_VERSION, &handle_);
    }
    status submit(std::uint32_t layer, const mnnkv_layout& layout, const void* key, const void* value,
                  std::uint32_t begin, std::uint32_t count, std::uint64_t* ticket = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_submit(handle_, layer, &layout, key, value, begin, count, ticket ? ticket : &unused);
    }
    status commit(std::uint32_t layer, const mnnkv_layout& layout, void* key, void* value,
                  std::uint64_t* released_bytes = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_commit(handle_, layer, &layout, key, value, released_bytes ? released_bytes : &unused);
    }
    status prefetch(std::uint32_t layer) noexcept { return mnnkv_store_prefetch(handle_, layer); }
    status restore(std::uint32_t layer, const mnnkv_layout& layout, void* key, void* value,
                   std::uint64_t* restored_bytes = nullptr) noexcept {
        std::uint64_t unused = 0;
        return mnnkv_store_restore(handle_, layer, &layout, key, value, restored_bytes ? restored_bytes : &unused);
    }
    status compacted(std::uint32_t layer, const std::int32_t* reserve_pairs, std::size_t n_pairs) noexcept {
        return mnnkv_store_compacted(handle_, layer, reserve_pairs, n_pairs);
    }
    status truncated(std::uint32_t layer, std::uint32_t kv_len) noexcept {
        return mnnkv_store_truncated(handle_, layer, kv_len);
    }
    status rewritten(std::uint32_t layer, std::uint32_t begin, std::uint32_t count) noexcept {
        return mnnkv_store_rewritten(handle_, layer, begin, count);
    }
    status stats(mnnkv_store_statistics& out) const noexcept {
        return detail::get(out, [this](mnnkv_store_statistics* to) { return mnnkv_store_stats(handle_, to); });
    }
};
}
#endif
#endif
