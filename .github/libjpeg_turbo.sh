#!/bin/sh
# For the wheels: libjpeg-turbo as a static library, so that they need none, and its licence beside ours.
set -eu
project=$1
commit=c85e6b905bf237038faa936dab160ebfc5da0344 # 3.2.0
yum install -y nasm || apk add nasm
rm -rf /tmp/libjpeg-turbo
git clone --depth 1 --branch 3.2.0 https://github.com/libjpeg-turbo/libjpeg-turbo /tmp/libjpeg-turbo
cd /tmp/libjpeg-turbo
test "$(git rev-parse HEAD)" = "$commit"
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DENABLE_SHARED=0 -DWITH_TURBOJPEG=0 -DWITH_TOOLS=0 -DREQUIRE_SIMD=1 \
    -DCMAKE_POSITION_INDEPENDENT_CODE=1 -DCMAKE_INSTALL_PREFIX=/usr/local -DCMAKE_INSTALL_LIBDIR=lib
cmake --build build --parallel
cmake --install build
cp LICENSE.md "$project/LICENSE.libjpeg-turbo.md"
