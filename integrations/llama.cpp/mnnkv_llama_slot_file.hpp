// mnn-kv in llama-server: the files of --slot-save-path as blobs. The lines of llama-server.patch call this.
//
// C++11. llama.cpp writes and reads its own files. One that it has written is replaced by its blob; one that it shall read is
// decoded, bit for bit, to a file beside it first. Files that are no blobs are read as they are, so that both kinds may lie in
// one folder. Blobs and decoded files are written beside the file, under names that no other file has; a blob takes the file's
// name once it is complete.

#ifndef MNNKV_LLAMA_SLOT_FILE_HPP
#define MNNKV_LLAMA_SLOT_FILE_HPP

#include "mnnkv_llama_layout.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#ifdef _WIN32
#include <atomic>
#else
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace mnnkv_llama {
namespace slot_file {

/// Reads a file. Empty where it cannot be read, or memory is refused.
inline buffer read(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) {
        return buffer();
    }
    buffer bytes;
    // A folder may be opened, but not read; its size is a number without meaning.
    const bool is_file = std::fgetc(file) != EOF;
    const long size = is_file && std::fseek(file, 0, SEEK_END) == 0 ? std::ftell(file) : -1;
    if (size > 0 && std::fseek(file, 0, SEEK_SET) == 0) {
        buffer whole(static_cast<std::size_t>(size));
        if (whole && std::fread(whole.data(), 1, whole.size(), file) == whole.size()) {
            bytes = std::move(whole);
        }
    }
    std::fclose(file);
    return bytes;
}

/// Whether a file begins as a blob does (README.md). llama.cpp's own files are not read further.
inline bool is_blob(const std::string& path) {
    char magic[8] = {};
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    const bool is_read = file != nullptr && std::fread(magic, 1, sizeof magic, file) == sizeof magic;
    if (file != nullptr) {
        std::fclose(file);
    }
    return is_read && std::memcmp(magic, "MNKVSTAT", sizeof magic) == 0;
}

/// Where links lead to a file.
inline std::string resolved(const std::string& path) {
#ifndef _WIN32
    if (char* const whole = ::realpath(path.c_str(), nullptr)) {
        const std::string found = whole;
        std::free(whole);
        return found;
    }
#endif
    return path;
}

/// A new file beside `path`, with its permissions; `name` becomes the file's. Null where none can be made.
inline std::FILE* open_beside(const std::string& path, std::string& name) {
#ifdef _WIN32
    static std::atomic<unsigned> number{0};
    name = path + "." + std::to_string(std::rand()) + "." + std::to_string(number++) + ".tmp";
    return std::fopen(name.c_str(), "wbx");
#else
    name = path + "." + std::string(6, 'X');  // which mkstemp replaces
    const int descriptor = ::mkstemp(&name[0]);
    if (descriptor < 0) {
        return nullptr;
    }
    struct stat other;
    if (::stat(path.c_str(), &other) == 0) {
        (void)!::fchmod(descriptor, other.st_mode & 07777);
    }
    std::FILE* const file = ::fdopen(descriptor, "wb");
    if (file == nullptr) {
        ::close(descriptor);
        std::remove(name.c_str());
    }
    return file;
#endif
}

/// Writes a new file beside `path`; `name` becomes the file's. Leaves none where that fails.
inline bool write_beside(const std::string& path, const buffer& bytes, std::string& name) {
    std::FILE* const file = open_beside(path, name);
    if (file == nullptr) {
        return false;
    }
    const bool is_written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    if ((std::fclose(file) != 0) | !is_written) {
        std::remove(name.c_str());
        return false;
    }
    return true;
}

/// Blobs of a cache have a third of its bytes and more: one of far fewer is made to take memory.
inline bool is_too_small(std::size_t blob, std::size_t raw) { return raw / 64 > blob; }

}  // namespace slot_file

/// Replaces a file of llama_state_seq_save_file by its blob, on all cores. Returns the bytes of the file that is there then: the
/// blob; or `size`, those of the file as it was, where it does not shrink, shrinks so far that it would not be read, or
/// anything fails.
inline std::size_t pack_slot_file(const std::string& given, std::size_t size) {
    const std::string path = slot_file::resolved(given);
    buffer blob;
    const buffer raw = slot_file::read(path);
    if (!raw || !compress(raw.data(), raw.size(), 0, blob) || blob.size() >= raw.size() ||
        slot_file::is_too_small(blob.size(), raw.size())) {
        return size;
    }
    std::string beside;
    if (!slot_file::write_beside(path, blob, beside)) {
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
    /// path: becomes that of the decoded file, if it is that of a blob.
    explicit raw_slot_file(std::string& path) {
        if (!slot_file::is_blob(path)) {
            return;
        }
        failed_ = true;
        const buffer blob = slot_file::read(path);
        std::size_t size = 0;
        if (!blob || mnnkv_state_decoded_size(blob.data(), blob.size(), &size) != MNNKV_OK ||
            slot_file::is_too_small(blob.size(), size)) {
            return;
        }
        buffer raw(size);
        if (raw && mnnkv_state_decode(blob.data(), blob.size(), 0, raw.data(), size, &size) == MNNKV_OK &&
            slot_file::write_beside(path, raw, decoded_)) {
            path = decoded_;
            failed_ = false;
        } else {
            decoded_.clear();
        }
    }

    /// The file is a blob that is damaged, too large for memory, or cannot be written beside it.
    bool failed() const { return failed_; }

    ~raw_slot_file() {
        if (!decoded_.empty()) {
            std::remove(decoded_.c_str());
        }
    }

    raw_slot_file(const raw_slot_file&) = delete;
    raw_slot_file& operator=(const raw_slot_file&) = delete;

private:
    std::string decoded_;
    bool failed_ = false;
};

}  // namespace mnnkv_llama

#endif  // MNNKV_LLAMA_SLOT_FILE_HPP
