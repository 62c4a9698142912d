// mnnkv/snapshot.hpp: mnnkv::snapshot.

#ifndef MNNKV_SNAPSHOT_HPP
#define MNNKV_SNAPSHOT_HPP

#include "session.hpp"
#include "snapshot.h"

namespace mnnkv {

/// Owns a mnnkv_snapshot. `Text` is std::string or the like; `Bytes` has resize, size and contiguous bytes.
class snapshot : public owner<mnnkv_snapshot, mnnkv_snapshot_destroy> {
public:
    /// mnnkv_snapshot_create, after reset(). Sets struct_size and abi_version. Empty on failure.
    status create(mnnkv_snapshot_options options) noexcept {
        reset();
        options.struct_size = static_cast<std::uint32_t>(sizeof options);
        options.abi_version = MNNKV_ABI_VERSION;
        return mnnkv_snapshot_create(&options, &handle_);
    }

    /// mnnkv_snapshot_open, after reset(). Sets struct_size and abi_version. Empty on failure.
    status open(mnnkv_snapshot_options options) noexcept {
        reset();
        options.struct_size = static_cast<std::uint32_t>(sizeof options);
        options.abi_version = MNNKV_ABI_VERSION;
        return mnnkv_snapshot_open(&options, &handle_);
    }

    /// mnnkv_snapshot_commit
    status commit() noexcept { return mnnkv_snapshot_commit(handle_); }

    /// mnnkv_snapshot_append
    status append(session& from, std::uint32_t layer, const mnnkv_park_options* options, mnnkv_cache& cache,
                  std::uint32_t* written = nullptr) noexcept {
        return mnnkv_snapshot_append(handle_, from.get(), layer, options, &cache, written);
    }

    /// mnnkv_snapshot_load
    status load(session& to, std::uint32_t layer) const noexcept {
        return mnnkv_snapshot_load(handle_, to.get(), layer);
    }

    /// mnnkv_snapshot_load, of all layers
    status load(session& to) const noexcept { return load(to, MNNKV_ALL_LAYERS); }

    /// mnnkv_snapshot_put
    status put(const char* name, const void* bytes, std::size_t len) noexcept {
        return mnnkv_snapshot_put(handle_, name, bytes, len);
    }

    /// mnnkv_snapshot_get: all bytes of a section.
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
};

}  // namespace mnnkv

#endif  // MNNKV_SNAPSHOT_HPP
