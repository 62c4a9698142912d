// Files that take the place of others. Needs no library.
//
// C++11, needs neither exceptions nor RTTI.
//
//   file_refusal   why what is at a path must stay
//   remove_file    removes a regular file
//   replace_file   gives a complete file its name, in place of a regular file
//   file_aside     a file that is out of the way while another one is made

#ifndef MNNKV_FILES_HPP
#define MNNKV_FILES_HPP

#include <sys/types.h>
// After sys/types.h, which some systems need first.
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>
#include <system_error>

namespace mnnkv_host {

/// Why what is at `path` may be neither replaced nor removed; "" if nothing is there, or a regular file, or a symbolic link
/// to one. rename does not check: as root it puts a regular file in the place of a device that other programs need.
inline std::string file_refusal(const std::string& path) {
#ifdef _WIN32
    struct _stat64 found;
    if (_stat64(path.c_str(), &found) != 0) {
        return errno == ENOENT ? "" : "cannot look at " + path + ": " + std::generic_category().message(errno);
    }
    switch (found.st_mode & _S_IFMT) {
        case _S_IFREG: return "";
        case _S_IFDIR: return path + " is a folder; a regular file expected";
        case _S_IFCHR: return path + " is a device; a regular file expected";
        case _S_IFIFO: return path + " is a pipe; a regular file expected";
        default: return path + " is no regular file";
    }
#else
    struct stat found;
    if (stat(path.c_str(), &found) != 0) {
        const int error = errno;
        struct stat link;
        if (error == ENOENT && lstat(path.c_str(), &link) != 0 && errno == ENOENT) {
            return "";
        }
        // A link that leads nowhere may be of a disk that is not mounted: its owner wants it back.
        return error == ENOENT ? path + " is a symbolic link to nothing; a regular file expected"
                               : "cannot look at " + path + ": " + std::generic_category().message(error);
    }
    switch (found.st_mode & S_IFMT) {
        case S_IFREG: return "";
        case S_IFDIR: return path + " is a folder; a regular file expected";
        case S_IFCHR:
        case S_IFBLK: return path + " is a device; a regular file expected";
        case S_IFIFO: return path + " is a pipe; a regular file expected";
        case S_IFSOCK: return path + " is a socket; a regular file expected";
        default: return path + " is no regular file";
    }
#endif
}

/// Removes a file, or the link to it. Returns why it is still there; "" if nothing is.
inline std::string remove_file(const std::string& path) {
    const std::string refusal = file_refusal(path);
    if (refusal.empty() && std::remove(path.c_str()) != 0 && errno != ENOENT) {
        return "cannot remove " + path + ": " + std::generic_category().message(errno);
    }
    return refusal;
}

/// Renames `from`, in place of what file_refusal lets go; a link is replaced, and what it leads to stays. Returns why not;
/// "" if it is done. No system checks and renames at once: what comes to `path` between the two is not seen.
inline std::string replace_file(const std::string& from, const std::string& path) {
#ifdef _WIN32
    const std::string refusal = remove_file(path);  // rename does not replace there
#else
    const std::string refusal = file_refusal(path);
#endif
    if (refusal.empty() && std::rename(from.c_str(), path.c_str()) != 0) {
        return "cannot rename " + from + " to " + path + ": " + std::generic_category().message(errno);
    }
    return refusal;
}

/// Takes a regular file out of the way, as `path`.old. It comes back unless `drop` is called.
class file_aside {
public:
    explicit file_aside(const std::string& path) : refusal(file_refusal(path)), path_(path), old_(path + ".old") {
        if (refusal.empty() && std::ifstream(path)) {
            refusal = replace_file(path_, old_);
            is_moved_ = refusal.empty();
        }
    }
    ~file_aside() {
        if (is_moved_) {
            (void)replace_file(old_, path_);
        }
    }
    file_aside(const file_aside&) = delete;
    file_aside& operator=(const file_aside&) = delete;

    void drop() {
        if (is_moved_) {
            (void)remove_file(old_);
            is_moved_ = false;
        }
    }

    /// Why the file is still there; "" if nothing is.
    std::string refusal;

private:
    const std::string path_, old_;
    bool is_moved_ = false;
};

}  // namespace mnnkv_host

#endif  // MNNKV_FILES_HPP
