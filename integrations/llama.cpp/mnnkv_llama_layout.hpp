// The tensors in a state buffer of llama.cpp, found by its layout. Needs no header of llama.cpp.
//
// C++11, needs neither exceptions nor RTTI.
//
// A buffer has no version of its own, so every known layout is tried. A layout counts only when all numbers are possible
// and the lengths add up to the last byte. Otherwise the buffer has no description, and is compressed as opaque bytes.
// README.md lists layouts and versions.

#ifndef MNNKV_LLAMA_LAYOUT_HPP
#define MNNKV_LLAMA_LAYOUT_HPP

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mnnkv/llama.h"

namespace mnnkv_llama {

/// The outcome of a call; true on success.
class status {
public:
    status(mnnkv_status code = MNNKV_OK, const char* why = nullptr) : code_(code), why_(why) {}

    explicit operator bool() const { return code_ == MNNKV_OK; }
    mnnkv_status code() const { return code_; }

    /// Why the call has failed. Read it on the thread of the call, before its next call. "" on success.
    const char* message() const { return code_ == MNNKV_OK ? "" : why_ != nullptr ? why_ : mnnkv_llama_last_error(); }

private:
    mnnkv_status code_;
    const char* why_;
};

/// The description of a buffer.
struct layout {
    /// The caches of the buffer, such as "streams" or "streams recurrent"; empty: not understood, opaque.
    std::string form;
    std::vector<mnnkv_state_tensor> tensors;
    /// The role of each tensor: 'k' (keys), 'v' (values) or 's' (recurrent state).
    std::vector<char> roles;
    /// Bytes of a row of each tensor: of a cell, or of a channel.
    std::vector<std::uint64_t> row_bytes;
};

/// A type of ggml that caches may have, by its number.
struct ggml_row {
    std::int32_t type;
    /// The type of the elements, or of the scales of blocks.
    std::uint32_t dtype;
    /// Bytes of a block, and of the scales that it begins with; 0: elements.
    std::uint16_t block, scale;
};

/// The row of a type, or NULL for types of no cache.
inline const ggml_row* row_of(std::int32_t type) {
    static const ggml_row rows[] = {
        {0, MNNKV_DTYPE_F32, 0, 0},   {1, MNNKV_DTYPE_F16, 0, 0},   {30, MNNKV_DTYPE_BF16, 0, 0},
        {2, MNNKV_DTYPE_F16, 18, 2},  // q4_0
        {3, MNNKV_DTYPE_F16, 20, 4},  // q4_1
        {6, MNNKV_DTYPE_F16, 22, 2},  // q5_0
        {7, MNNKV_DTYPE_F16, 24, 4},  // q5_1
        {8, MNNKV_DTYPE_F16, 34, 2},  // q8_0
        {20, MNNKV_DTYPE_F16, 18, 2}, // iq4_nl
    };
    for (const ggml_row& row : rows) {
        if (row.type == type) {
            return &row;
        }
    }
    return nullptr;
}

/// Reads a buffer as one layout after the other.
class layout_reader {
public:
    layout_reader(const void* data, std::size_t size)
        : data_(static_cast<const unsigned char*>(data)), size_(size) {}

    layout read() {
        // A sequence, in later versions with its id; its file; a context, its file; both with outputs, which older
        // versions write.
        for (const prefix start : {&layout_reader::nothing, &layout_reader::sequence, &layout_reader::sequence_file,
                                   &layout_reader::context, &layout_reader::context_file,
                                   &layout_reader::context_with_outputs, &layout_reader::file_with_outputs}) {
            std::size_t at = 0;
            found_ = layout();
            if ((this->*start)(at) && caches(at, 0)) {
                return found_;
            }
        }
        return layout();
    }

private:
    using prefix = bool (layout_reader::*)(std::size_t&) const;

    /// Differences between versions and models.
    struct cache_form {
        const char* name;
        /// The number of streams comes first.
        bool has_streams;
        /// Bytes that a cell has more: the place in an image, and a token in later versions.
        std::uint32_t place_bytes;
        /// V is there; absent where K has it all (MLA).
        bool has_values;
        /// Layers without a state are left out, and the end of the buffer ends the others.
        bool is_recurrent;
    };

    /// More caches than any model has: attention, sliding window, recurrent.
    static const int max_caches = 4;
    static const std::uint32_t max_streams = 4096, max_layers = 4096, max_sequences = 4096, max_channels = 1u << 24;

    /// The rest of the buffer is caches. Tries each form, and what follows it.
    bool caches(std::size_t at, int depth) {
        if (at == size_) {
            return depth > 0;
        }
        static const cache_form forms[] = {
            {"streams", true, 0, true, false},    {"streams", true, 8, true, false},
            {"streams", true, 12, true, false},   {"streams-k", true, 0, false, false},
            {"streams-k", true, 8, false, false}, {"streams-k", true, 12, false, false},
            {"cells", false, 0, true, false},     {"recurrent", false, 0, true, true},
        };
        const layout before = found_;
        for (const cache_form& form : forms) {
            std::size_t end = at;
            if (depth < max_caches && cache(form, end) && end > at) {
                found_.form += (depth > 0 ? " " : "") + std::string(form.name);
                if (caches(end, depth + 1)) {
                    return true;
                }
            }
            found_ = before;
        }
        return false;
    }

    bool cache(const cache_form& form, std::size_t& at) {
        std::uint32_t streams = 1;
        if (form.has_streams && (!take(at, streams) || streams == 0 || streams > max_streams)) {
            return false;
        }
        for (std::uint32_t i = 0; i < streams; ++i) {
            std::uint32_t cells = 0;
            if (!take(at, cells)) {
                return false;
            }
            if (cells == 0 && form.has_streams) {
                continue;
            }
            for (std::uint32_t cell = 0; cell < cells; ++cell) {
                std::int32_t position = 0;
                std::uint32_t sequences = 0;
                if (!take(at, position) || !take(at, sequences) || sequences > max_sequences ||
                    !skip(at, form.place_bytes) || !skip(at, std::uint64_t(4) * sequences)) {
                    return false;
                }
            }
            if (!tensors(form, cells, at)) {
                return false;
            }
        }
        return true;
    }

    bool tensors(const cache_form& form, std::uint32_t cells, std::size_t& at) {
        std::uint32_t is_transposed = 0, layers = 0;
        if (!take(at, is_transposed) || !take(at, layers) || is_transposed > 1 || layers == 0 || layers > max_layers) {
            return false;
        }
        role_ = form.is_recurrent ? 's' : 'k';
        if (form.is_recurrent) {
            std::uint32_t count = 0;
            while (at < size_) {
                if (++count > 2 * layers || !rows(cells, at)) {
                    return false;
                }
            }
            return is_transposed == 0 && count > 0;
        }
        for (std::uint32_t i = 0; i < layers; ++i) {
            if (!rows(cells, at)) {
                return false;
            }
        }
        role_ = 'v';
        for (std::uint32_t i = 0; form.has_values && i < layers; ++i) {
            if (is_transposed == 1 ? !channels(cells, at) : !rows(cells, at)) {
                return false;
            }
        }
        return true;
    }

    /// A tensor with a row per cell.
    bool rows(std::uint32_t cells, std::size_t& at) {
        std::int32_t type = 0;
        std::uint64_t bytes = 0;
        if (!take(at, type) || !take(at, bytes)) {
            return false;
        }
        const ggml_row* row = row_of(type);
        if (row == nullptr || bytes == 0 || bytes % (row->block > 0 ? row->block : width(*row)) != 0) {
            return false;
        }
        return tensor(*row, cells, bytes, at);
    }

    /// A tensor with a row per channel.
    bool channels(std::uint32_t cells, std::size_t& at) {
        std::int32_t type = 0;
        std::uint32_t element = 0, count = 0;
        if (!take(at, type) || !take(at, element) || !take(at, count)) {
            return false;
        }
        const ggml_row* row = row_of(type);
        if (row == nullptr || row->block > 0 || element != width(*row) || count == 0 || count > max_channels) {
            return false;
        }
        return tensor(*row, count, std::uint64_t(element) * cells, at);
    }

    bool tensor(const ggml_row& row, std::uint64_t count, std::uint64_t bytes, std::size_t& at) {
        if (count == 0 || bytes == 0) {
            return true;
        }
        mnnkv_state_tensor found = {};
        found.dtype = row.dtype;
        found.block_bytes = row.block;
        found.scale_bytes = row.scale;
        found.offset = at;
        found.bytes = count * bytes;
        if (bytes > size_ / count || !skip(at, found.bytes)) {
            return false;
        }
        found_.tensors.push_back(found);
        found_.roles.push_back(role_);
        found_.row_bytes.push_back(bytes);
        return true;
    }

    bool nothing(std::size_t&) const { return true; }

    bool sequence(std::size_t& at) const {
        std::uint32_t given[2] = {0, 0};
        return take(at, given) && given[0] == 0xaf143cd8;
    }

    bool sequence_file(std::size_t& at) const { return file(0x67677371, at); }

    bool context_file(std::size_t& at) const { return file(0x6767736e, at) && context(at); }

    bool file_with_outputs(std::size_t& at) const { return file(0x6767736e, at) && context_with_outputs(at); }

    /// Magic, version and the tokens of a prompt.
    bool file(std::uint32_t magic, std::size_t& at) const {
        std::uint32_t given[3] = {0, 0, 0};
        return take(at, given) && given[0] == magic && skip(at, std::uint64_t(4) * given[2]);
    }

    /// The name of the architecture.
    bool context(std::size_t& at) const {
        std::uint32_t name = 0;
        return take(at, name) && name < 256 && skip(at, name);
    }

    /// Output ids, logits and embeddings behind it.
    bool context_with_outputs(std::size_t& at) const {
        std::uint32_t ids = 0;
        std::uint64_t logits = 0, embeddings = 0;
        return context(at) && take(at, ids) && skip(at, std::uint64_t(4) * ids) &&
               take(at, logits) && logits <= size_ / 4 && skip(at, 4 * logits) && take(at, embeddings) &&
               embeddings <= size_ / 4 && skip(at, 4 * embeddings);
    }

    static std::uint32_t width(const ggml_row& row) { return row.dtype == MNNKV_DTYPE_F32 ? 4 : 2; }

    template <class T>
    bool take(std::size_t& at, T& number) const {
        if (size_ - at < sizeof number) {
            return false;
        }
        std::memcpy(&number, data_ + at, sizeof number);
        at += sizeof number;
        return true;
    }

    bool skip(std::size_t& at, std::uint64_t bytes) const {
        if (size_ - at < bytes) {
            return false;
        }
        at += static_cast<std::size_t>(bytes);
        return true;
    }

    const unsigned char* data_;
    std::size_t size_;
    layout found_;
    char role_ = 's';
};

/// The description of a buffer from llama_state_seq_get_data, or llama_state_get_data, or of a file of
/// llama_state_seq_save_file or llama_state_save_file. Never fails: an unknown buffer has no tensors.
inline layout find(const void* data, std::size_t size) { return layout_reader(data, size).read(); }

/// Bytes that are not filled first, since touching memory of this size takes as long as encoding it. Movable.
class buffer {
public:
    buffer() = default;
    /// Empty where memory is refused.
    explicit buffer(std::size_t size)
        : data_(static_cast<unsigned char*>(std::malloc(size > 0 ? size : 1))), size_(data_ ? size : 0) {}

    explicit operator bool() const { return data_ != nullptr; }
    unsigned char* data() { return data_.get(); }
    const unsigned char* data() const { return data_.get(); }
    std::size_t size() const { return size_; }

    /// Returns the memory behind the first `size` bytes, and copies none of them where the allocator can.
    void shrink(std::size_t size) {
        void* const moved = std::realloc(data_.get(), size > 0 ? size : 1);
        if (moved != nullptr) {
            (void)data_.release();
            data_.reset(static_cast<unsigned char*>(moved));
        }
        size_ = size;
    }

private:
    struct deleter {
        void operator()(unsigned char* data) const { std::free(data); }
    };
    std::unique_ptr<unsigned char, deleter> data_;
    std::size_t size_ = 0;
};

/// Compresses a buffer of this layout to `blob`, which is unchanged after a failure. Without a layout that fits all bytes are
/// opaque. threads: the calling one included; 0 = as many as cores.
inline status compress_as(layout& described, const void* data, std::size_t size, std::uint32_t threads, buffer& blob) {
    std::size_t bound = mnnkv_state_bound(size, described.tensors.data(), described.tensors.size());
    if (bound == 0) {
        described = layout();
        bound = mnnkv_state_bound(size, nullptr, 0);
    }
    buffer out(bound);
    if (!out) {
        return status(MNNKV_OUT_OF_MEMORY, "out of memory");
    }
    std::size_t len = 0;
    const mnnkv_status result = mnnkv_state_encode(data, size, described.tensors.data(), described.tensors.size(),
                                                   threads, out.data(), bound, &len);
    if (result == MNNKV_OK) {
        out.shrink(len);
        blob = std::move(out);
    }
    return status(result);
}

/// As compress_as, of any layout that is known. `found`: set unless NULL, where this succeeds.
inline status compress(const void* data, std::size_t size, std::uint32_t threads, buffer& blob, layout* found = nullptr) {
    layout described = find(data, size);
    const status result = compress_as(described, data, size, threads, blob);
    if (result && found != nullptr) {
        *found = described;
    }
    return result;
}

/// Decodes a blob to `data`, on all cores; it is unchanged after a failure. `max_size`: larger buffers are BUFFER_TOO_SMALL,
/// whatever a blob claims.
inline status decompress(const void* blob, std::size_t blob_size, std::size_t max_size, buffer& data) {
    std::size_t claimed = 0;
    const mnnkv_status read = mnnkv_state_decoded_size(blob, blob_size, &claimed);
    if (read != MNNKV_OK) {
        return status(read);
    }
    if (claimed > max_size) {
        return status(MNNKV_BUFFER_TOO_SMALL, "the state in the blob is larger than max_size");
    }
    buffer out(claimed);
    std::size_t size = 0;
    if (!out) {
        return status(MNNKV_OUT_OF_MEMORY, "out of memory");
    }
    const mnnkv_status result = mnnkv_state_decode(blob, blob_size, 0, out.data(), claimed, &size);
    if (result == MNNKV_OK) {
        data = std::move(out);
    }
    return status(result);
}

}  // namespace mnnkv_llama

#endif  // MNNKV_LLAMA_LAYOUT_HPP
