"""What the virtual node's root file system holds beside Debian's packages: units, settings, our binaries. Pure."""

from typing import Final

SUITE: Final = "trixie"
PACKAGES: Final = (
    "systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "iproute2", "openssh-server", "libseccomp2",
    "containernetworking-plugins", "nftables", "iptables", "conntrack", "apparmor", "dmsetup", "e2fsprogs", "xfsprogs",
)  # fmt: skip
RUNTIME: Final = "runc"
RUNTIME_SUITE: Final = "forky"
"""The suite's own release 1.1 knows no user namespaces."""
KERNEL: Final = "linux-image-cloud-amd64"
BOOT_MODULE: Final = "virtio_blk"
"""The one module that mounts the root file system; ext4 and virtio's bus are in the kernel."""
STATE: Final = "/var/lib/gpu-share"
STATE_DISK: Final = "/dev/vdb"
BINARIES: Final = ("containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "kube-proxy")
FOLDERS: Final = (STATE.lstrip("/"), "var/lib/kubelet/pki", "var/lib/kube-proxy", "etc/cni/net.d", "etc/containerd")
UNITS: Final = ("testbed-network", "containerd", "kubelet", "kube-proxy")
MASKED: Final = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer",
    "xfs_scrub_all.timer", "getty@tty1.service", "serial-getty@ttyS0.service", "systemd-networkd.socket",
    "e2scrub_reap.service", "systemd-networkd.service", "ssh.socket",
)  # fmt: skip

INITRAMFS: Final = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox insmod /virtio_blk.ko
until /bin/busybox mount -t ext4 /dev/vda /root 2>/dev/null; do /bin/busybox sleep 0.1; done
/bin/busybox umount /dev
exec /bin/busybox switch_root /root /sbin/init
"""

NETWORK: Final = """\
#!/bin/sh
# The machine's address and gateway stand on the kernel's command line: testbed.address=A/24 testbed.gateway=G
set -eu
for word in $(cat /proc/cmdline); do
  case "$word" in
    testbed.address=*) address=${word#*=} ;;
    testbed.gateway=*) gateway=${word#*=} ;;
  esac
done
ip link set lo up
ip address add "$address" dev eth0
ip link set eth0 up
ip route add default via "$gateway"
echo 1 > /proc/sys/net/ipv4/ip_forward
"""

FILES: Final = {
    "usr/local/sbin/testbed-network": NETWORK,
    "etc/fstab": f"/dev/vda / ext4 rw,noatime 0 0\n{STATE_DISK} {STATE} auto rw,noatime,nofail 0 0\n",
    "etc/modules-load.d/node.conf": "overlay\nbr_netfilter\nxfs\n",
    "etc/resolv.conf": "search invalid\n",
    "etc/systemd/journald.conf.d/testbed.conf": "[Journal]\nStorage=volatile\nForwardToConsole=no\n",
    "etc/systemd/system.conf.d/testbed.conf": "[Manager]\nDefaultTimeoutStopSec=30s\nShowStatus=no\n",
    "etc/ssh/sshd_config.d/testbed.conf": (
        "PermitRootLogin prohibit-password\nUseDNS no\nUsePAM no\nPrintMotd no\nMaxSessions 100\nMaxStartups 100\n"
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
    ),
    "etc/systemd/system/testbed-network.service": """\
[Unit]
Description=Address of the test bed's node
DefaultDependencies=no
Wants=network-pre.target
After=systemd-udev-settle.service sys-subsystem-net-devices-eth0.device
BindsTo=sys-subsystem-net-devices-eth0.device
Before=network.target ssh.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/testbed-network

[Install]
WantedBy=multi-user.target
""",
    "etc/systemd/system/containerd.service": f"""\
[Unit]
Description=containerd
After=network.target local-fs.target
RequiresMountsFor=/var/lib/containerd {STATE}

[Service]
ExecStart=/usr/local/bin/containerd --config /etc/containerd/config.toml
Environment=PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=2
LimitNOFILE=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
""",
    "etc/systemd/system/kubelet.service": """\
[Unit]
Description=kubelet
After=containerd.service testbed-network.service
Wants=containerd.service
ConditionPathExists=/var/lib/kubelet/config.yaml

[Service]
EnvironmentFile=/var/lib/kubelet/node.env
ExecStart=/usr/local/bin/kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/var/lib/kubelet/kubeconfig.yaml \\
  --hostname-override=${NODE_NAME} --node-ip=${NODE_ADDRESS} --node-labels=${NODE_LABELS} --v=2
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
""",
    "etc/systemd/system/kube-proxy.service": """\
[Unit]
Description=kube-proxy
After=testbed-network.service
ConditionPathExists=/var/lib/kube-proxy/config.yaml

[Service]
ExecStart=/usr/local/bin/kube-proxy --config=/var/lib/kube-proxy/config.yaml
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
""",
}
"""Text files by path below the root; those in ``sbin`` are programs."""
