// mnn-kv in llama-server: the files of --slot-save-path as blobs. The lines of llama-server.patch call this.
//
// C++11. llama.cpp writes and reads its own files. One that it has written is replaced by its blob; one that it shall read is
// decoded, bit for bit, to a file beside it first. Files that are no blobs are read as they are, so that both kinds may lie in
// one folder. A blob is written beside the file and takes its name once it is complete.

#ifndef MNNKV_LLAMA_SLOT_FILE_HPP
#define MNNKV_LLAMA_SLOT_FILE_HPP

#include "mnnkv_llama_layout.hpp"

#include <cstdio>
#include <cstring>
#include <string>

namespace mnnkv_llama {
namespace slot_file {

/// Reads a file. Empty where it cannot be read, or memory is refused.
inline buffer read(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) {
        return buffer();
    }
    buffer bytes;
    const long size = std::fseek(file, 0, SEEK_END) == 0 ? std::ftell(file) : -1;
    if (size > 0 && std::fseek(file, 0, SEEK_SET) == 0) {
        buffer whole(static_cast<std::size_t>(size));
        if (whole && std::fread(whole.data(), 1, whole.size(), file) == whole.size()) {
            bytes = std::move(whole);
        }
    }
    std::fclose(file);
    return bytes;
}

/// Whether a file begins as a blob does (docs/state.md). llama.cpp's own files are not read further.
inline bool is_blob(const std::string& path) {
    char magic[8] = {};
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    const bool is_read = file != nullptr && std::fread(magic, 1, sizeof magic, file) == sizeof magic;
    if (file != nullptr) {
        std::fclose(file);
    }
    return is_read && std::memcmp(magic, "MNKVSTAT", sizeof magic) == 0;
}

/// Writes a file. Leaves none where that fails.
inline bool write(const std::string& path, const buffer& bytes) {
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) {
        return false;
    }
    const bool is_written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    if ((std::fclose(file) != 0) | !is_written) {
        std::remove(path.c_str());
        return false;
    }
    return true;
}

}  // namespace slot_file

/// Replaces a file of llama_state_seq_save_file by its blob, on all cores. Returns the bytes of the file that is there then: the
/// blob; or `size`, those of the file as it was, where it does not shrink or anything fails.
inline std::size_t pack_slot_file(const std::string& path, std::size_t size) {
    buffer blob;
    const buffer raw = slot_file::read(path);
    mnnkv_state_options options = mnnkv::make<mnnkv_state_options>();
    options.effort = 1;
    if (!raw || !compress(raw.data(), raw.size(), &options, blob) || blob.size() >= raw.size()) {
        return size;
    }
    const std::string beside = path + ".mnnkv";
    if (!slot_file::write(beside, blob)) {
        return size;
    }
#ifdef _WIN32  // rename replaces no file there
    std::remove(path.c_str());
#endif
    if (std::rename(beside.c_str(), path.c_str()) != 0) {
        std::remove(beside.c_str());
        return size;
    }
    return blob.size();
}

/// A file that llama_state_seq_load_file shall read. The decoded file lives as long as this.
class raw_slot_file {
public:
    /// path: becomes that of the decoded file, if it is that of a blob which is whole. A damaged blob stays as it is, and
    /// llama.cpp refuses it.
    explicit raw_slot_file(std::string& path) {
        if (!slot_file::is_blob(path)) {
            return;
        }
        const buffer blob = slot_file::read(path);
        std::size_t size = 0;
        if (!blob || mnnkv_state_decoded_size(blob.data(), blob.size(), &size) != MNNKV_OK) {
            return;
        }
        buffer raw(size);
        if (raw && mnnkv_state_decode(blob.data(), blob.size(), nullptr, raw.data(), size, &size) == MNNKV_OK &&
            slot_file::write(path + ".raw", raw)) {
            decoded_ = path + ".raw";
            path = decoded_;
        }
    }

    ~raw_slot_file() {
        if (!decoded_.empty()) {
            std::remove(decoded_.c_str());
        }
    }

    raw_slot_file(const raw_slot_file&) = delete;
    raw_slot_file& operator=(const raw_slot_file&) = delete;

private:
    std::string decoded_;
};

}  // namespace mnnkv_llama

#endif  // MNNKV_LLAMA_SLOT_FILE_HPP
