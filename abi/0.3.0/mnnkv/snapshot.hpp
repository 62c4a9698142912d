// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_SNAPSHOT_HPP
#define MNNKV_SNAPSHOT_HPP
#include "session.hpp"
#include "snapshot.h"
namespace mnnkv {
class snapshot : public owner<mnnkv_snapshot, mnnkv_snapshot_destroy> {
public:
    status create(mnnkv_snapshot_options options) noexcept {
        reset();
        options.struct_size = static_cast<std::uint32_t>(sizeof options);
        options.abi_version = MNNKV_ABI_VERSION;
        return mnnkv_snapshot_create(&options, &handle_);
    }
    status open(mnnkv_snapshot_options options) noexcept {
        reset();
        options.struct_size = static_cast<std::uint32_t>(sizeof options);
        options.abi_version = MNNKV_ABI_VERSION;
        return mnnkv_snapshot_open(&options, &handle_);
    }
    status commit() noexcept { return mnnkv_snapshot_commit(handle_); }
    status discard() noexcept { return mnnkv_snapshot_discard(handle_); }
    status compact(const mnnkv_park_options* options, snapshot& to) const noexcept {
        return mnnkv_snapshot_compact(handle_, options, to.handle_);
    }
    status append(session& from, std::uint32_t layer, const mnnkv_park_options* options, mnnkv_cache& cache,
                  std::uint32_t* written = nullptr) noexcept {
        return mnnkv_snapshot_append(handle_, from.get(), layer, options, &cache, written);
    }
    status load(session& to, std::uint32_t layer) const noexcept {
        return mnnkv_snapshot_load(handle_, to.get(), layer);
    }
    status load(session& to) const noexcept { return load(to, MNNKV_ALL_LAYERS); }
    status put(const char* name, const void* bytes, std::size_t len) noexcept {
        return mnnkv_snapshot_put(handle_, name, bytes, len);
    }
    status remove(const char* name) noexcept { return mnnkv_snapshot_remove(handle_, name); }
    template <class Bytes>
    status section(const char* name, Bytes& bytes) const {
        static_assert(sizeof(bytes[0]) == 1, "a section is bytes");
        std::size_t len = 0;
        bytes.resize(0);
        status result = mnnkv_snapshot_get(handle_, name, nullptr, 0, &len);
        while (result.code() == MNNKV_BUFFER_TOO_SMALL) {
            bytes.resize(len);
            result = mnnkv_snapshot_get(handle_, name, &bytes[0], len, &len);
        }
        bytes.resize(result ? len : 0);
        return result;
    }
    template <class Text>
    status verify(Text& damages) const {
        return detail::fill(damages, [this](char* text, std::size_t cap, std::size_t* len) {
            return mnnkv_snapshot_verify(handle_, text, cap, len);
        });
    }
    status info(mnnkv_snapshot_info& out) const noexcept {
        return detail::get(out, [this](mnnkv_snapshot_info* to) { return mnnkv_snapshot_get_info(handle_, to); });
    }
    status layer_info(std::uint32_t index, mnnkv_snapshot_layer_info& out) const noexcept {
        return detail::get(out, [this, index](mnnkv_snapshot_layer_info* to) {
            return mnnkv_snapshot_get_layer_info(handle_, index, to);
        });
    }
};
}
#endif
